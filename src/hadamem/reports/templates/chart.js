// Lines, bars and points of one figure as SVG, with a read-out that follows the pointer.

const LETTER = 7.2; // width of a letter of tick labels, in pixels
const OVER_A_BAR = {colour: '#23231f', dash: '4 2'}; // a reference of the same label, seen on its colour

function drawChart(plot, figure, styles, isShown) {
  plot.replaceChildren();
  const shown = figure.series.filter((series) => isShown(series.label) && series.x.length);
  const width = Math.max(280, plot.clientWidth);
  if (!shown.length) {
    htmlNode('p', 'empty', plot, figure.series.some((series) => series.x.length) ? 'All series are hidden.' : 'No results yet.');
    return;
  }
  const measured = shown.filter((series) => !series.dashed); // references stand where these do
  const categories = shown.some((series) => series.x.some((x) => typeof x === 'string'))
    ? [...new Set((measured.length ? measured : shown).flatMap((series) => series.x.map(String)))] : null;
  const box = {width, height: Math.round(Math.min(430, Math.max(270, width * 0.45)))};
  const isBar = figure.kind === 'bar';
  const ys = shown.flatMap((series) => [series.y, series.low || [], series.high || []].flat());
  const layOut = (left, bottom) => {
    [box.left, box.right, box.top, box.bottom] = [left, width - 14, 10, box.height - bottom];
    return makeScale(ys, figure.y_log, box.bottom, box.top, {range: figure.y_range, zero: isBar, count: (box.bottom - box.top) / 55, margin: 0.04});
  };
  let y = layOut(60, 52);
  const yWidth = Math.max(...y.ticks.map((tick) => shortNumber(tick).length)) * LETTER;
  const names = categories && categoryLabels(categories, (width - yWidth - 50) / categories.length);
  if (names && names.turned) box.height += names.depth - 20;
  y = layOut(Math.max(36 + yWidth, names && names.turned ? names.reach : 0), names ? names.depth + 32 : 52);
  const svg = svgNode('svg', {width, height: box.height, role: 'presentation'}, plot);
  const x = categories ? categoryScale(categories, box) : makeScale(
    shown.flatMap((series) => (series.dashed && series.x.length === 1 ? [] : series.x)), figure.x_log, box.left, box.right,
    {count: (box.right - box.left) / 90, margin: figure.kind === 'line' ? 0.01 : 0.05, own: true});
  drawAxes(svg, figure, box, x, y, categories, names);
  const clip = `clip-${figure.name}`;
  svgNode('rect', {x: box.left - 6, y: box.top - 6, width: box.right - box.left + 12, height: box.bottom - box.top + 12},
    svgNode('clipPath', {id: clip}, svg));
  const canvas = svgNode('g', {'clip-path': `url(#${clip})`}, svg);
  const slots = categories && makeSlots(shown, x);
  shown.forEach((series, i) => {
    const group = svgNode('g', {class: 'series', 'data-label': series.label}, canvas);
    const style = styles[series.label];
    const points = series.x.map((value, k) => ({
      value, y: series.y[k], low: series.low ? series.low[k] : null, high: series.high ? series.high[k] : null,
      px: categories ? slots(series, String(value)).at : x.at(value), py: y.at(series.y[k]), wide: categories ? slots(series, String(value)).wide : 0,
    }));
    const isSecond = categories && measured.some((other) => other.label === series.label);
    if (series.dashed) drawReference(group, points, isSecond ? OVER_A_BAR : style, box, categories);
    else if (isBar) drawBars(group, points, style, y, box, categories);
    else if (figure.kind === 'points') drawPoints(group, points, style, y);
    else drawLine(group, points, style, y, i, shown.length);
  });
  addReadOut(plot, svg, figure, styles, shown, box, x, categories);
}

function categoryLabels(categories, room) {
  // Whether the names fit beside each other, or have to be turned; how deep they reach below the axis and to its left.
  const texts = categories.map((name) => shortened(name, 26));
  const longest = Math.max(...texts.map((name) => name.length)) * LETTER;
  const turned = longest > room - 8;
  return {texts, turned, depth: turned ? longest * 0.6 + 14 : 20, reach: turned ? longest * 0.8 + 26 - room / 2 : 0};
}

function categoryScale(categories, box) {
  const step = (box.right - box.left) / categories.length;
  return {at: (name) => box.left + (categories.indexOf(String(name)) + 0.5) * step, step};
}

function makeSlots(shown, x) {
  // Where a series stands within a category, beside the others that have a value there. A reference stands over the series of its name.
  const present = new Map();
  shown.filter((series) => !series.dashed).forEach((series) => series.x.forEach((value) => {
    const labels = present.get(String(value)) || present.set(String(value), []).get(String(value));
    if (!labels.includes(series.label)) labels.push(series.label);
  }));
  return (series, name) => {
    const labels = present.get(name) || [];
    const place = labels.indexOf(series.label);
    const wide = x.step * 0.82;
    if (place < 0) return {at: x.at(name), wide};
    const each = Math.min(wide / labels.length, 64);
    return {at: x.at(name) + (place - (labels.length - 1) / 2) * each, wide: each};
  };
}

function drawAxes(svg, figure, box, x, y, categories, names) {
  y.ticks.forEach((tick) => {
    const at = y.at(tick);
    svgNode('line', {class: 'grid', x1: box.left, x2: box.right, y1: at, y2: at}, svg);
    svgNode('text', {x: box.left - 7, y: at + 4, 'text-anchor': 'end'}, svg, shortNumber(tick));
  });
  if (categories) {
    categories.forEach((name, i) => {
      const [at, below] = [x.at(name), box.bottom + (names.turned ? 12 : 17)];
      const label = svgNode('text', names.turned ? {transform: `translate(${at + 4} ${below}) rotate(-37)`, 'text-anchor': 'end'}
        : {x: at, y: below, 'text-anchor': 'middle'}, svg, names.texts[i]);
      if (names.texts[i] !== name) svgNode('title', {}, label, name);
    });
  } else {
    x.ticks.forEach((tick) => {
      const at = x.at(tick);
      svgNode('line', {class: 'grid', x1: at, x2: at, y1: box.top, y2: box.bottom}, svg);
      svgNode('text', {x: at, y: box.bottom + 17, 'text-anchor': 'middle'}, svg, shortNumber(tick));
    });
  }
  svgNode('line', {class: 'axis', x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom}, svg);
  svgNode('line', {class: 'axis', x1: box.left, x2: box.left, y1: box.top, y2: box.bottom}, svg);
  drawAxisTitles(svg, figure, box);
}

function pieces(points, isGood) {
  // Runs of good points; a line is broken where a value is missing.
  const found = [[]];
  points.forEach((point) => {
    if (isGood(point)) found[found.length - 1].push(point);
    else if (found[found.length - 1].length) found.push([]);
  });
  return found.filter((piece) => piece.length);
}

const isPlaced = (point) => Number.isFinite(point.px) && Number.isFinite(point.py);
const trace = (pairs) => pairs.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join('L');

function drawLine(group, points, style, y, index, count) {
  const hasBand = (p) => isPlaced(p) && Number.isFinite(y.at(p.low)) && Number.isFinite(y.at(p.high));
  pieces(points, hasBand).forEach((piece) => {
    const there = piece.map((p) => [p.px, y.at(p.high)]);
    const back = piece.map((p) => [p.px, y.at(p.low)]).reverse();
    svgNode('path', {class: 'band', d: `M${trace(there)}L${trace(back)}Z`, fill: style.colour, 'fill-opacity': 0.14}, group);
  });
  pieces(points, isPlaced).forEach((piece) => svgNode('path', {
    class: 'line', d: `M${trace(piece.map((p) => [p.px, p.py]))}`, fill: 'none', stroke: style.colour, 'stroke-width': 2, 'stroke-linejoin': 'round',
  }, group));
  const placed = points.filter(isPlaced); // some markers along the line, shifted so that those of different series do not meet
  const every = placed.length <= 16 ? 1 : Math.ceil(placed.length / 8);
  const first = every === 1 ? 0 : Math.floor((every * (index + 0.5)) / count);
  drawMarkers(group, style, placed.filter((_, i) => i % every === first).map((p) => [p.px, p.py]), 4.2);
}

function drawWhiskers(group, points, style, y, colour) {
  points.filter((p) => isPlaced(p) && Number.isFinite(y.at(p.low)) && Number.isFinite(y.at(p.high))).forEach((p) => {
    const [a, b, reach] = [y.at(p.low), y.at(p.high), Math.min(5, p.wide ? p.wide * 0.22 : 5)];
    svgNode('path', {
      class: 'whisker', d: `M${p.px} ${a}V${b}M${p.px - reach} ${a}h${2 * reach}M${p.px - reach} ${b}h${2 * reach}`, stroke: colour, 'stroke-width': 1.5,
      fill: 'none',
    }, group);
  });
}

function drawPoints(group, points, style, y) {
  drawWhiskers(group, points, style, y, style.colour);
  drawMarkers(group, style, points.filter(isPlaced).map((p) => [p.px, p.py]), 5.2);
}

function drawBars(group, points, style, y, box, categories) {
  const zero = Math.min(box.bottom, Math.max(box.top, Number.isFinite(y.at(0)) ? y.at(0) : box.bottom));
  const wide = categories ? null : Math.max(2, (box.right - box.left) / (points.length * 1.4));
  points.filter(isPlaced).forEach((p) => {
    const thick = Math.max(1, (wide || p.wide) * 0.88);
    svgNode('rect', {class: 'bar', x: p.px - thick / 2, y: Math.min(p.py, zero), width: thick, height: Math.abs(p.py - zero), fill: style.colour}, group);
    if (thick >= 9 && Math.abs(p.py - zero) >= 16) {
      svgNode('path', {d: markerPath(style.marker, p.px, zero + (p.py < zero ? -8 : 8), 3.6), fill: style.hollow ? 'none' : '#ffffff', stroke: '#ffffff'}, group);
    }
  });
  drawWhiskers(group, points, style, y, '#33332f');
}

function drawReference(group, points, style, box, categories) {
  const look = {class: 'line', fill: 'none', stroke: style.colour, 'stroke-width': 1.8, 'stroke-dasharray': style.dash};
  const placed = points.filter((p) => Number.isFinite(p.py) && (!categories || categories.includes(String(p.value))));
  if (categories) {
    placed.forEach((p) => svgNode('path', {...look, d: `M${p.px - p.wide / 2} ${p.py}h${p.wide}`}, group));
  } else if (points.length === 1) {
    placed.forEach((p) => svgNode('path', {...look, d: `M${box.left} ${p.py}H${box.right}`}, group));
  } else {
    pieces(points, isPlaced).forEach((piece) => svgNode('path', {...look, d: `M${trace(piece.map((p) => [p.px, p.py]))}`}, group));
  }
}

function addReadOut(plot, svg, figure, styles, shown, box, x, categories) {
  // The values of all series at the place nearest to the pointer; with the keyboard, the arrow keys move that place.
  const single = (series) => series.dashed && series.x.length === 1 && !categories;
  const values = categories || [...new Set(shown.filter((series) => !single(series)).flatMap((series) => series.x))]
    .filter((v) => Number.isFinite(x.at(v))).sort((a, b) => a - b);
  if (!values.length) return;
  const places = values.map((v) => x.at(v));
  const cursor = svgNode('line', {class: 'cursor', y1: box.top, y2: box.bottom, visibility: 'hidden'}, svg);
  const near = Math.max(6, (box.right - box.left) / 60); // series with other x than the nearest one count within so many pixels
  let current = -1;

  const rowsAt = (i) => shown.flatMap((series) => {
    let k = 0;
    if (categories) return series.x.flatMap((v, j) => (String(v) === categories[i] ? [{series, k: j}] : []));
    if (!single(series)) {
      series.x.forEach((v, j) => { if (Math.abs(x.at(v) - places[i]) < Math.abs(x.at(series.x[k]) - places[i])) k = j; });
      if (!(Math.abs(x.at(series.x[k]) - places[i]) <= near)) return [];
    }
    return [{series, k}];
  }).filter(({series, k}) => isNumber(series.y[k])).sort((a, b) => b.series.y[b.k] - a.series.y[a.k]);

  const show = (i, clientX, clientY) => {
    current = i;
    cursor.setAttribute('x1', places[i]);
    cursor.setAttribute('x2', places[i]);
    cursor.setAttribute('visibility', 'visible');
    tip.show(clientX, clientY, (content) => {
      htmlNode('div', 'tip-title', content, categories ? categories[i] : `${figure.x_label}: ${longNumber(values[i])}`);
      const rows = htmlNode('div', 'tip-rows', content);
      rowsAt(i).forEach(({series, k}) => {
        const isSecond = series.dashed && shown.some((other) => other.label === series.label && !other.dashed);
        rows.appendChild(symbol(styles[series.label], series.dashed));
        htmlNode('span', 'tip-label', rows, isSecond ? `${series.label}, reference` : series.label);
        htmlNode('span', 'tip-value', rows, longNumber(series.y[k]));
        const range = series.low && series.high && isNumber(series.low[k]) && isNumber(series.high[k]);
        htmlNode('span', 'tip-range', rows, range ? `[${longNumber(series.low[k])}, ${longNumber(series.high[k])}]` : '');
      });
    });
  };
  const hide = () => { cursor.setAttribute('visibility', 'hidden'); tip.hide(); };
  const follow = (event) => {
    const at = event.clientX - svg.getBoundingClientRect().left;
    let best = 0;
    places.forEach((place, i) => { if (Math.abs(place - at) < Math.abs(places[best] - at)) best = i; });
    show(best, event.clientX, event.clientY);
  };
  plot.onpointermove = follow;
  plot.onpointerdown = follow;
  plot.onpointerleave = hide;
  plot.onblur = hide;
  plot.onkeydown = (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (event.key === 'Escape') hide();
    if (!step) return;
    event.preventDefault();
    const to = Math.min(values.length - 1, Math.max(0, current + step));
    const frame = svg.getBoundingClientRect();
    show(to, frame.left + places[to], frame.top + box.top);
  };
}
