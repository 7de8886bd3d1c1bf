// Before anything is drawn: the theme that this browser's person chose, else the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("limpet-theme"); } catch { /* storage is off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
