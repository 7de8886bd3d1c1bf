// Panning and zooming of a canvas by mouse, wheel, touch.

const LEAST = 0.02;
const MOST = 6;
const TAP_PX = 5;

export class Camera {
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    Object.assign(this, { k: 1, x: 0, y: 0, width: 0, height: 0, ratio: 1, onTap: null, onHover: null });
    this.pointers = new Map();
    this.moved = 0;
    canvas.addEventListener("pointerdown", (event) => this.#down(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    canvas.addEventListener("pointerup", (event) => this.#up(event));
    canvas.addEventListener("pointercancel", (event) => this.pointers.delete(event.pointerId));
    canvas.addEventListener("pointerleave", () => { if (!this.pointers.size) this.onHover?.(null, null); });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), event.offsetX, event.offsetY); }, { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoom(1.8, event.offsetX, event.offsetY));
  }

  measure() {
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.ratio = Math.min(3, devicePixelRatio || 1);
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
  }

  fit([x0, y0, x1, y1], [top, bottom]) {
    const room = [Math.max(50, this.width - 40), Math.max(50, this.height - top - bottom)];
    this.k = Math.max(LEAST, Math.min(1.9, room[0] / (x1 - x0), room[1] / (y1 - y0)));
    this.x = this.width / 2 - ((x0 + x1) / 2) * this.k;
    this.y = top + room[1] / 2 - ((y0 + y1) / 2) * this.k;
    this.changed();
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const k = Math.max(LEAST, Math.min(MOST, this.k * factor));
    this.x = px - ((px - this.x) * k) / this.k;
    this.y = py - ((py - this.y) * k) / this.k;
    this.k = k;
    this.changed();
  }

  /** A point of the world into view; `k`: at least so near. */
  bring(point, k = 0) {
    if (this.k < k) this.k = k;
    const [px, py] = [point.x * this.k + this.x, point.y * this.k + this.y];
    if (k || px < 60 || px > this.width - 60 || py < 60 || py > this.height - 60) {
      this.x = this.width / 2 - point.x * this.k;
      this.y = this.height / 2 - point.y * this.k;
    }
    this.changed();
  }

  world(px, py) {
    return { x: (px - this.x) / this.k, y: (py - this.y) / this.k };
  }

  /** What is seen of the world, and `margin` pixels more. */
  view(margin) {
    const [a, b] = [this.world(-margin, -margin), this.world(this.width + margin, this.height + margin)];
    return [a.x, a.y, b.x, b.y];
  }

  #down(event) {
    if (event.button) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
    if (this.pointers.size === 1) this.moved = 0;
  }

  #move(event) {
    const before = this.pointers.get(event.pointerId);
    const now = [event.offsetX, event.offsetY];
    if (!before) return this.onHover?.(...now);
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    this.pointers.set(event.pointerId, now);
    this.moved += Math.hypot(now[0] - before[0], now[1] - before[1]);
    if (others.length) {
      const gap = (at) => Math.max(10, Math.hypot(at[0] - others[0][0], at[1] - others[0][1]));
      this.zoom(gap(now) / gap(before), (now[0] + others[0][0]) / 2, (now[1] + others[0][1]) / 2);
    } else {
      this.x += now[0] - before[0];
      this.y += now[1] - before[1];
      this.changed();
    }
    return undefined;
  }

  #up(event) {
    if (this.pointers.delete(event.pointerId) && !this.pointers.size && this.moved < TAP_PX) this.onTap?.(event.offsetX, event.offsetY);
  }
}
