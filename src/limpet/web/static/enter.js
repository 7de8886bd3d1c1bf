// A one-time link carries its secret behind `#`, which no server and no log ever sees.
const secret = location.hash.slice(1);
if (secret) {
  history.replaceState(null, "", "/enter");
  document.getElementById("secret").value = secret;
  document.getElementById("entering").textContent = "Signing in…";
  document.getElementById("enter").requestSubmit();
}
