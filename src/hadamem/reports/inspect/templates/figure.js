// A card with a title, a help text and a canvas; and what all plots draw: axes, colour bars, images of maps.
const FONT = "12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif";
const figures = [];          // everything that is drawn again when the step, an option or the window changes

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// parent: where the card goes; paint(ctx, width, height): draws it; pointed(x, y): text for a place in it, or ""; picked(x): a click.
function addFigure(parent, { id, name, help, height, paint, pointed, picked }) {
  const readout = element("span", { class: "readout" });
  const head = element("div", { class: "head" }, element("span", { class: "name" }, name), element("span", { class: "help" }, help || ""), readout);
  const canvas = element("canvas", { "data-figure": id || name, role: "img", "aria-label": `${name}: ${help || ""}` });
  const card = element("div", { class: "card" }, head, canvas);
  parent.append(card);
  const figure = { card, canvas, head, width: 0, height: 0, place: null };
  figure.draw = () => {
    const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth, high = typeof height === "function" ? height(width) : height;
    if (!width) return;
    canvas.style.height = `${high}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(high * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(high * ratio);
    }
    const ctx = canvas.getContext("2d");
    ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
    ctx.clearRect(0, 0, width, high);
    ctx.font = FONT;
    paint(ctx, width, high);
    readout.textContent = figure.place && pointed ? pointed(...figure.place) : "";
  };
  if (pointed) {
    canvas.addEventListener("mousemove", event => {
      figure.place = [event.offsetX, event.offsetY];
      readout.textContent = pointed(...figure.place);
    });
    canvas.addEventListener("mouseleave", () => { figure.place = null; readout.textContent = ""; });
  }
  if (picked) {
    canvas.style.cursor = "crosshair";
    canvas.addEventListener("click", event => picked(event.offsetX, event.offsetY));
  }
  figures.push(figure);
  return figure;
}

function addLegend(figure, entries) {
  const legend = element("div", { class: "legend" });
  for (const [colour, text, line] of entries) {
    legend.append(element("span", {}, element("i", { style: `background:${colour}`, class: line ? "line" : "" }), text));
  }
  figure.card.append(legend);
}

function addChoice(parent, id, label, options, current, pick) {
  const select = element("select", { id });
  options.forEach(([value, text]) => select.append(element("option", { value }, text)));
  select.value = current;
  select.addEventListener("change", () => { pick(select.value); drawAll(); });
  parent.append(element("label", {}, `${label} `, select));
  return select;
}

function write(ctx, text, x, y, align = "left", baseline = "middle", colour = SOFT) {
  ctx.fillStyle = colour;
  ctx.textAlign = align;
  ctx.textBaseline = baseline;
  ctx.fillText(text, x, y);
}

// A map of rows x columns as an image: colour(row, column) gives [r, g, b].
function makeImage(rows, columns, colour) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const ctx = canvas.getContext("2d"), image = ctx.createImageData(columns, rows);
  for (let r = 0, at = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++, at += 4) {
      const [red, green, blue] = colour(r, c);
      image.data[at] = red;
      image.data[at + 1] = green;
      image.data[at + 2] = blue;
      image.data[at + 3] = 255;
    }
  }
  ctx.putImageData(image, 0, 0);
  return canvas;
}

function drawImage(ctx, image, box) {
  ctx.imageSmoothingEnabled = false;
  ctx.drawImage(image, box.x, box.y, box.width, box.height);
  ctx.strokeStyle = FAINT;
  ctx.lineWidth = 1;
  ctx.strokeRect(box.x + 0.5, box.y + 0.5, box.width - 1, box.height - 1);
}

// labels: [top, middle or null, bottom]
function drawBar(ctx, colours, x, y, height, labels) {
  const step = height / 256;
  colours.forEach(([r, g, b], n) => {
    ctx.fillStyle = `rgb(${r},${g},${b})`;
    ctx.fillRect(x, y + height - (n + 1) * step, 11, n ? step + 0.6 : step);
  });
  ctx.strokeStyle = FAINT;
  ctx.strokeRect(x + 0.5, y + 0.5, 10, height - 1);
  const [top, middle, bottom] = labels;
  write(ctx, top, x + 16, y + 6);
  if (middle !== null) write(ctx, middle, x + 16, y + height / 2);
  write(ctx, bottom, x + 16, y + height - 6);
}

function barLabels(map, spread) {
  const middle = spread.log ? `± ${number(spread.reach / 10 ** ORDERS, 2)}` : number(map.centre), near = map.centre ? number(map.centre) : middle.replace("± ", "");
  const digits = map.centre ? Math.max(3, Math.ceil(-Math.log10(spread.reach)) + 2) : 2, top = number(map.centre + spread.reach, digits), bottom = number(map.centre - spread.reach, digits);
  return map.side === "both" ? [top, middle, bottom] : map.side === "below" ? [near, null, bottom] : [top, null, near];
}

// Round numbers between two values.
function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const raw = span / count, power = 10 ** Math.floor(Math.log10(raw)), step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw);
  const found = [];
  for (let x = Math.ceil(low / step - 1e-9) * step; x <= high + step * 1e-6; x += step) found.push(Math.abs(x) < step * 1e-6 ? 0 : x);
  return found;
}

// A tick's label, with as many decimals as the distance to the next one needs.
function tickText(v, marks) {
  const step = marks.length > 1 ? marks[1] - marks[0] : Math.abs(v) || 1;
  if (v !== 0 && (step < 1e-5 || Math.abs(v) >= 1e5)) return number(v);
  return v.toFixed(Math.min(6, Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)))).replace("-", "−");
}

// Steps along the bottom of a box, and the line of the present step.
function drawTimeAxis(ctx, box, label = true) {
  const last = DATA.steps - 1;
  ctx.strokeStyle = FAINT;
  for (const t of ticks(0, last, Math.max(2, box.width / 90)).filter(Number.isInteger)) {
    const x = timeToX(box, t);
    ctx.beginPath();
    ctx.moveTo(x, box.y + box.height);
    ctx.lineTo(x, box.y + box.height + 4);
    ctx.stroke();
    write(ctx, String(t), x, box.y + box.height + 7, "center", "top");
  }
  if (label) write(ctx, "step", box.x + box.width + 8, box.y + box.height + 13);
}

function timeToX(box, t) {
  return box.x + (t + 0.5) / DATA.steps * box.width;
}

function xToTime(box, x) {
  const t = Math.floor((x - box.x) / box.width * DATA.steps);
  return t < 0 || t >= DATA.steps ? null : t;
}

function drawCursor(ctx, box) {
  const x = timeToX(box, chosen.step);
  ctx.strokeStyle = "#ffffff";
  ctx.lineWidth = 3;
  line(ctx, x, box.y, x, box.y + box.height);
  ctx.strokeStyle = "#c1121f";
  ctx.lineWidth = 1.5;
  line(ctx, x, box.y - 3, x, box.y + box.height + 3);
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}
