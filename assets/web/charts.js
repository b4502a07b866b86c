// Curves of one GPU over time, drawn by uPlot from the page's own data. The
// page says the same in words, so that nothing is lost without script.
(() => {
  "use strict";

  const box = document.querySelector("[data-history]");
  if (!box) return;
  const figures = [...box.querySelectorAll("[data-curve]")];
  const plots = new Map();
  const every = Number(box.dataset.every) * 1000;
  const sync = uPlot.sync("gpu");

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const font = (size) => `${size}px ${getComputedStyle(document.body).fontFamily}`;
  const write = (value, unit) => (value == null ? "–" : `${+value.toFixed(value < 10 ? 1 : 0)} ${unit}`);

  // The legend shows the latest values where nobody points at others.
  const showLast = (plot) => plot.setLegend({ idx: plot.data[0].length - 1 }, false);

  function options(figure, width) {
    const { curve, unit, top } = figure.dataset;
    const axis = { stroke: colour("--muted"), font: font(12), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    // A value alone makes no line.
    const few = (plot) => plot.data[0].length < 40;
    const line = { stroke: colour("--data"), width: 1.5, points: { show: few, size: 4 }, spanGaps: false, value: (_, v) => write(v, unit) };
    const series = [{ value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }];
    if (figure.dataset.peak) {
      series.push({ ...line, label: "highest", stroke: colour("--data-soft"), fill: colour("--data-soft"), width: 1 });
    }
    series.push({ ...line, label: figure.dataset.label });
    return {
      width,
      height: 160,
      cursor: { sync: { key: sync.key }, y: false, points: { size: 6 } },
      legend: { live: true },
      scales: { x: { time: true, range: () => [latest.from, latest.to] }, y: { range: (_, low, high) => [0, Number(top) || Math.max(high * 1.1, 1)] } },
      axes: [
        { ...axis, size: 40, space: 70, values: [
          [3600 * 24 * 365, "{YYYY}", null, null, null, null, null, null, 1],
          [3600 * 24, "{D} {MMM}", null, null, null, null, null, null, 1],
          [60, "{HH}:{mm}", "\n{D} {MMM}", null, null, null, null, null, 1],
          [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1],
        ] },
        { ...axis, size: 44, space: 34, values: (_, ticks) => ticks.map((t) => `${t}`) },
      ],
      series,
      hooks: { ready: [showLast], setData: [showLast], setCursor: [(plot) => plot.cursor.idx == null && showLast(plot)] },
      padding: [8, 8, 0, 0],
    };
  }

  const columns = (figure, data) => {
    const list = [data.time];
    if (figure.dataset.peak) list.push(data[figure.dataset.peak]);
    list.push(data[figure.dataset.curve]);
    return list;
  };

  let latest = null;

  function draw() {
    if (!latest) return;
    for (const figure of figures) {
      const known = latest[figure.dataset.curve].some((v) => v != null);
      figure.querySelector("[data-empty]").hidden = known;
      const place = figure.querySelector("[data-plot]");
      place.hidden = !known;
      if (!known) continue;
      const plot = plots.get(figure);
      if (plot) plot.setData(columns(figure, latest));
      else plots.set(figure, new uPlot(options(figure, place.clientWidth), columns(figure, latest), place));
    }
  }

  // Colours and sizes are read when a plot is made.
  function redraw() {
    for (const plot of plots.values()) plot.destroy();
    plots.clear();
    draw();
  }

  async function load() {
    if (document.hidden) return;
    try {
      const answer = await fetch(box.dataset.history, { headers: { Accept: "application/json" } });
      if (!answer.ok) return; // the live parts say that the lab cannot be reached
      latest = await answer.json();
      draw();
    } catch {
      // likewise
    }
  }

  load();
  setInterval(load, every);
  document.addEventListener("visibilitychange", load);
  new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth === width) return; // a phone's address bar comes and goes
    width = innerWidth;
    redraw();
  });
})();
