"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const settings = { responsive: true, displayModeBar: false, scrollZoom: false };
  const entities = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "\n": "<br>" };
  const texts = data.texts.map((text) => text.replace(/[&<>\n]/g, (found) => entities[found]));
  const colour = document.getElementById("colour");
  const turnable = document.getElementById("turnable");

  const shownView = () => {
    const chosen = document.querySelector("input[name=view]:checked");
    return chosen ? Number(chosen.value) : 0;
  };
  const isNarrow = () => document.documentElement.clientWidth < 600;
  const ofView = (list, view) => list[list.length === 1 ? 0 : view];

  const projected = (chart, view) => {
    const figure = chart.figures[2 * view + (turnable.checked ? 1 : 0)];
    const marker = data.markers[colour.selectedIndex];
    const below = { orientation: "h", y: -0.25, yanchor: "top", tickangle: 90, title: "" }; // the choice above says it
    const bar = isNarrow() ? { ...marker.colorbar, ...below } : marker.colorbar;
    const rows = { ...figure.data[0], text: texts, marker: { ...marker, colorbar: bar, ...figure.data[0].marker } };
    return { data: [rows, ...figure.data.slice(1)], layout: figure.layout };
  };

  const draw = (name, view) => {
    const chart = data.charts[name];
    const figure = name === "projection" ? projected(chart, view) : ofView(chart.figures, view);
    document.getElementById(name + "-words").textContent = ofView(chart.sentences, view);
    const layout = structuredClone(figure.layout); // plotly writes into what it is given
    if (isNarrow() && layout.yaxis) {
      layout.yaxis.tickfont = { size: 10 }; // names of repairs are nearly as wide as a phone
    }
    return Plotly.react(name, figure.data, layout, settings);
  };

  const drawAll = () => {
    const view = shownView();
    document.getElementById("verdict").textContent = data.verdicts[view];
    for (const [name, value] of Object.entries(data.numbers[view])) {
      document.querySelector(`[data-number="${name}"]`).textContent = value;
    }
    return Promise.all(Object.keys(data.charts).map((name) => draw(name, view)));
  };

  for (const input of document.querySelectorAll("input[name=view]")) {
    input.addEventListener("change", drawAll);
  }
  for (const control of [colour, turnable]) {
    control.addEventListener("change", () => draw("projection", shownView()));
  }
  for (const button of document.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => {
      const { save, format } = button.dataset;
      Plotly.downloadImage(save, { format, filename: save, width: 900, height: 560 });
    });
  }
  drawAll().then(() => document.documentElement.setAttribute("data-drawn", "yes"));
})();
