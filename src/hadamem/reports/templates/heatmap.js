// A matrix as colours, with a scale beside it and the value under the pointer.

function rampColour(stops, share) {
  // The colour at a share in [0, 1] of a list of colours.
  const at = Math.min(1, Math.max(0, share)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at));
  return [1, 3, 5].map((k) => {
    const [a, b] = [stops[i], stops[i + 1]].map((stop) => parseInt(stop.slice(k, k + 2), 16));
    return Math.round(a + (b - a) * (at - i));
  });
}

function tickStep(least) {
  // Every how many entries there is a label: 1, 2, 5, 10, 20, ...
  const power = 10 ** Math.max(0, Math.floor(Math.log10(least)));
  return [1, 2, 5, 10].map((n) => n * power).find((step) => step >= least);
}

function drawHeatMap(plot, figure, page) {
  plot.replaceChildren();
  const [rows, columns] = [figure.values.length, figure.values.length ? figure.values[0].length : 0];
  const present = figure.values.flat().filter(isNumber);
  if (!present.length) {
    htmlNode('p', 'empty', plot, 'No results yet.');
    return;
  }
  let low = present.reduce((a, b) => Math.min(a, b));
  let high = present.reduce((a, b) => Math.max(a, b));
  if (figure.centre !== null) {
    const reach = Math.max(high - figure.centre, figure.centre - low) || 1;
    [low, high] = [figure.centre - reach, figure.centre + reach];
  } else if (low === high) {
    [low, high] = [low - 0.5, high + 0.5];
  }
  const stops = figure.centre !== null ? page.diverging : page.sequential;
  const colourOf = (value) => (isNumber(value) ? [...rampColour(stops, (value - low) / (high - low)), 255] : [255, 255, 255, 0]);

  const width = Math.max(280, plot.clientWidth);
  const yNames = (figure.y_ticks || figure.values.map((_, i) => String(i))).map((name) => shortened(name, 26));
  const xNames = (figure.x_ticks || figure.values[0].map((_, i) => String(i))).map((name) => shortened(name, 26));
  const left = 34 + Math.max(...yNames.map((name) => name.length)) * LETTER;
  const isPlain = figure.x_ticks === null && figure.y_ticks === null; // a matrix of numbers: square entries
  const across = isPlain ? Math.min(width - left - 110, columns * Math.min(44, 460 / rows)) : Math.min(width - left - 110, columns * 64);
  const names = categoryLabels(xNames, across / columns);
  const turned = figure.x_ticks !== null && names.turned;
  const cell = across / columns;
  const down = isPlain ? cell * rows : Math.min(Math.max(cell * rows, 70), Math.max(320, rows * 15), rows * 44);
  const depth = turned ? names.depth : 20;
  const box = {width, height: 8 + down + depth + 32, left, right: left + across, top: 8, bottom: 8 + down};
  const svg = svgNode('svg', {width, height: box.height, role: 'presentation'}, plot);

  const canvas = document.createElement('canvas'); // one pixel per entry: large matrices stay quick
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext('2d');
  const picture = context.createImageData(columns, rows);
  figure.values.flat().forEach((value, i) => picture.data.set(colourOf(value), 4 * i));
  context.putImageData(picture, 0, 0);
  const hatch = svgNode('pattern', {id: `hatch-${figure.name}`, width: 6, height: 6, patternUnits: 'userSpaceOnUse'}, svg);
  svgNode('path', {d: 'M-1 7L7 -1M-1 1L1 -1M5 7L7 5', stroke: page.missing, 'stroke-width': 1.5}, hatch);
  svgNode('rect', {x: box.left, y: box.top, width: across, height: down, fill: `url(#hatch-${figure.name})`}, svg); // behind missing entries
  svgNode('image', {
    class: 'cells', href: canvas.toDataURL(), x: box.left, y: box.top, width: across, height: down, preserveAspectRatio: 'none',
    style: 'image-rendering: pixelated',
  }, svg);

  const [wide, high_] = [across / columns, down / rows];
  const digits = Math.max(0, 2 - Math.floor(Math.log10(high - low) - 1e-9) - 1);
  const written = Math.max(...[low, high].map((v) => v.toFixed(digits).length)) * LETTER + 6;
  if (wide >= written && high_ >= 18 && rows * columns <= 400) {
    figure.values.forEach((row, i) => row.forEach((value, j) => {
      const [r, g, b] = isNumber(value) ? colourOf(value) : [255, 255, 255];
      const dark = 0.3 * r + 0.59 * g + 0.11 * b < 140;
      const text = isNumber(value) ? minus(value.toFixed(digits)) : '\u2013';
      svgNode('text', {x: box.left + (j + 0.5) * wide, y: box.top + (i + 0.5) * high_ + 4, 'text-anchor': 'middle',
        style: `fill: ${dark ? '#ffffff' : '#23231f'}`}, svg, text);
    }));
  }
  const everyRow = tickStep(14 / high_);
  yNames.forEach((name, i) => {
    if (i % everyRow === 0) svgNode('text', {x: box.left - 7, y: box.top + (i + 0.5) * high_ + 4, 'text-anchor': 'end'}, svg, name);
  });
  const everyColumn = tickStep((turned ? 15 : Math.max(...xNames.map((name) => name.length)) * LETTER + 8) / wide);
  xNames.forEach((name, j) => {
    const [at, below] = [box.left + (j + 0.5) * wide, box.bottom + (turned ? 12 : 17)];
    if (j % everyColumn === 0) {
      svgNode('text', turned ? {transform: `translate(${at + 4} ${below}) rotate(-37)`, 'text-anchor': 'end'}
        : {x: at, y: below, 'text-anchor': 'middle'}, svg, name);
    }
  });
  drawAxisTitles(svg, figure, box);
  drawColourScale(svg, figure, box, stops, low, high);

  plot.onpointermove = (event) => {
    const frame = svg.getBoundingClientRect();
    const j = Math.floor((event.clientX - frame.left - box.left) / wide);
    const i = Math.floor((event.clientY - frame.top - box.top) / high_);
    if (i < 0 || j < 0 || i >= rows || j >= columns) {
      tip.hide();
      return;
    }
    tip.show(event.clientX, event.clientY, (content) => {
      const place = (label, ticks, k) => `${label}: ${ticks ? ticks[k] : k}`;
      htmlNode('div', 'tip-title', content, `${place(figure.y_label, figure.y_ticks, i)}\n${place(figure.x_label, figure.x_ticks, j)}`);
      const value = figure.values[i][j];
      htmlNode('div', '', content, `${figure.value_label || 'value'}: ${isNumber(value) ? longNumber(value) : 'no value'}`);
    });
  };
  plot.onpointerleave = tip.hide;
}

function drawColourScale(svg, figure, box, stops, low, high) {
  const id = `ramp-${figure.name}`;
  const ramp = svgNode('linearGradient', {id, x1: 0, x2: 0, y1: 1, y2: 0}, svg);
  stops.forEach((stop, i) => svgNode('stop', {offset: i / (stops.length - 1), 'stop-color': stop}, ramp));
  const at = box.right + 18;
  const bottom = Math.min(box.bottom, box.top + 460);
  svgNode('rect', {x: at, y: box.top, width: 12, height: bottom - box.top, fill: `url(#${id})`, stroke: '#b8b8b4', 'stroke-width': 0.5}, svg);
  const scale = makeScale([low, high], false, bottom, box.top, {count: Math.max(4, (bottom - box.top) / 50)});
  const reach = Math.max(...scale.ticks.map((tick) => shortNumber(tick).length)) * LETTER;
  scale.ticks.forEach((tick) => svgNode('text', {x: at + 17, y: scale.at(tick) + 4}, svg, shortNumber(tick)));
  svgNode('text', {class: 'axis-title', 'text-anchor': 'middle', transform: `translate(${at + reach + 26} ${(box.top + bottom) / 2}) rotate(90)`}, svg,
    figure.value_label);
}
