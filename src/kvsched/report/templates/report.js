"use strict";
(function () {
  const root = document.documentElement;
  const places = Array.from(document.querySelectorAll(".figure"));
  const closed = Array.from(document.querySelectorAll("details:not([open])[data-print]"));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function colours(forPrint) {
    const style = getComputedStyle(root);
    const read = (name) => style.getPropertyValue(name).trim();
    const ink = forPrint ? "#000" : read("--ink");
    const line = forPrint ? "#bbb" : read("--line");
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line };
    const flat = { "font.color": ink, "hoverlabel.bgcolor": forPrint ? "#fff" : read("--card"),
      "hoverlabel.bordercolor": line, "hoverlabel.font.color": ink };
    for (const name of ["xaxis", "yaxis"])
      for (const key of Object.keys(axis)) flat[name + "." + key] = axis[key];
    return flat;
  }

  // The figure for the width that its place has now; a phone has no room for axis titles.
  function fitted(place) {
    const figure = JSON.parse(document.getElementById(place.id + "-data").textContent);
    const layout = figure.layout;
    if (place.clientWidth < 520) {
      layout.font.size = 11;
      layout.margin.l = Math.min(layout.margin.l, 44);
      layout.margin.r = 8;
      if (layout.yaxis.title) delete layout.yaxis.title;
    }
    layout.width = place.clientWidth;
    place.dataset.width = layout.width;
    place.dataset.height = layout.height;
    place.style.height = layout.height + "px";
    return figure;
  }

  function draw(place) {
    if (place.hidden || Number(place.dataset.width) === place.clientWidth) return;
    const figure = fitted(place);
    const settings = { displayModeBar: false };
    const show = place.dataset.drawn ? Plotly.react : Plotly.newPlot;
    place.dataset.drawn = "1";
    show(place, figure.data, figure.layout, settings)
      .then(() => Plotly.relayout(place, colours(false)));
  }

  // Printed or saved as PDF, a page is narrower than the window: the figures' width is in pixels.
  function resize(forPrint) {
    for (const place of places)
      if (place.dataset.drawn && !place.hidden)
        Plotly.relayout(place, forPrint
          ? { width: 660, height: Math.min(Number(place.dataset.height), place.dataset.group === "curves" ? 370 : 1e4) }
          : { width: Number(place.dataset.width), height: Number(place.dataset.height) });
  }

  function recolour(forPrint) {
    for (const place of places)
      if (place.dataset.drawn) Plotly.relayout(place, colours(forPrint));
  }

  for (const button of document.querySelectorAll("[data-show]"))
    button.addEventListener("click", function () {
      for (const other of document.querySelectorAll('[data-of="' + button.dataset.of + '"]'))
        other.setAttribute("aria-pressed", String(other === button));
      for (const place of places)
        if (place.dataset.group === button.dataset.of) place.hidden = place.id !== button.dataset.show;
      for (const table of document.querySelectorAll('details[data-group="' + button.dataset.of + '"]'))
        table.hidden = table.dataset.with !== button.dataset.show;
      draw(document.getElementById(button.dataset.show));
      recolour(false);
    });

  document.getElementById("theme").addEventListener("click", function () {
    const now = root.dataset.theme || (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    recolour(false);
  });
  dark.addEventListener("change", () => recolour(false));
  window.addEventListener("beforeprint", function () {
    for (const table of closed) table.open = true;
    recolour(true);
    resize(true);
  });
  window.addEventListener("afterprint", function () {
    for (const table of closed) table.open = false;
    recolour(false);
    resize(false);
  });
  let waiting = 0;
  window.addEventListener("resize", function () {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => places.forEach(draw), 80);
  });
  places.forEach(draw);
})();
