"use strict";
// The page is complete without this script; it adds the language switch, read-outs and the maps.

const root = document.documentElement;
const inChinese = () => root.lang.startsWith("zh");

function wantedLanguage() {
  const asked = location.hash.slice(1);
  if (asked === "zh" || asked === "en") return asked;
  return (navigator.language || "en").toLowerCase().startsWith("zh") ? "zh" : "en";
}

root.lang = wantedLanguage() === "zh" ? "zh-Hans" : "en"; // before the first paint

document.addEventListener("DOMContentLoaded", () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const svgSpace = document.querySelector("svg").namespaceURI;
  const languageListeners = [];

  // --- words ---

  function say(key, values = {}) {
    const text = data.words[key][inChinese() ? 1 : 0];
    return text.replace(/\{(\w+)\}/g, (_, name) => values[name]);
  }

  function make(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  function draw(parent, tag, attributes, text) {
    const element = document.createElementNS(svgSpace, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text !== undefined) element.textContent = text;
    parent.append(element);
    return element;
  }

  // --- language ---

  function setLanguage(language) {
    root.lang = language === "zh" ? "zh-Hans" : "en";
    document.title = plain(data.title[language === "zh" ? 1 : 0]);
    for (const button of document.querySelectorAll(".switch button"))
      button.setAttribute("aria-pressed", String(button.value === language));
    for (const element of document.querySelectorAll("[data-zh]"))
      element.setAttribute("aria-label", element.dataset[language]);
    for (const listener of languageListeners) listener();
  }

  function plain(html) {
    return new DOMParser().parseFromString(html, "text/html").body.textContent;
  }

  function startLanguage() {
    const group = document.querySelector(".switch");
    group.hidden = false;
    group.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (!button) return;
      history.replaceState(null, "", "#" + button.value);
      setLanguage(button.value);
    });
    addEventListener("hashchange", () => setLanguage(wantedLanguage()));
    // A link to a section scrolls there and leaves the language in the address.
    document.querySelector("nav").addEventListener("click", (event) => {
      const link = event.target.closest("a");
      const section = link && document.querySelector(link.hash);
      if (!section) return;
      event.preventDefault();
      section.scrollIntoView();
      section.tabIndex = -1;
      section.focus({ preventScroll: true });
    });
    setLanguage(wantedLanguage());
  }

  // --- read-outs of charts and heat maps ---

  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  function shortNumber(value) {
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    if (size && size < 0.001) return value.toExponential(2);
    return String(Number(value.toPrecision(3)));
  }

  function nearest(points, x) {
    return points.reduce((best, point) => (Math.abs(point[0] - x) < Math.abs(best[0] - x) ? point : best));
  }

  function readChart(chart, x) {
    const step = nearest(chart.series[0].points, x)[0];
    const parts = chart.series.map((series) => {
      const name = series.name[inChinese() ? 1 : 0];
      return (name ? name + " " : "") + shortNumber(nearest(series.points, step)[1]);
    });
    const at = chart.sure ? "sure" : chart.far ? "far" : "step";
    return [say(at, { n: step.toLocaleString("en") }), ...parts].join(" · ");
  }

  function followCurves(plot, chart) {
    const out = plot.closest("figure").querySelector("output");
    const cursor = plot.querySelector(".cursor");
    const [low, high] = chart.x;
    let at = null;
    const show = (share) => {
      at = share === null ? null : Math.min(1, Math.max(0, share));
      cursor.hidden = at === null;
      out.textContent = at === null ? "" : readChart(chart, low + at * (high - low));
      if (at !== null) cursor.style.left = 100 * at + "%";
    };
    follow(plot, (x) => show(x), (dx) => show((at ?? 0.5) + dx / 100), () => show(null));
    languageListeners.push(() => show(at));
  }

  // What a cell says: of a layer at a step, or of two positions.
  function cellReader(map) {
    if (map.names)
      return (row, column) => {
        const value = map.values[row][column], n = map.steps[column].toLocaleString("en");
        return say("layer_at", { name: map.names[row], n, value: value === null ? "–" : shortNumber(value) });
      };
    const values = new Int8Array(bytes(map.values).buffer);
    return (row, column) => {
      const value = ((values[row * map.columns + column] / 127) * map.scale).toFixed(2);
      return say(map.similar ? "similar" : "position", { row, column, value });
    };
  }

  function followHeat(plot, map) {
    const out = plot.closest("figure").querySelector("output");
    const read = cellReader(map);
    let at = null;
    const show = (place) => {
      at = place;
      out.textContent = at ? read(...at) : "";
    };
    const within = (n, size) => Math.min(size - 1, Math.max(0, n));
    follow(
      plot,
      (x, y) => show([within(Math.floor(y * map.rows), map.rows), within(Math.floor(x * map.columns), map.columns)]),
      (dx, dy) => show([within((at ? at[0] : 0) + dy, map.rows), within((at ? at[1] : 0) + dx, map.columns)]),
      () => show(null),
    );
    languageListeners.push(() => show(at));
  }

  // Pointer and arrow keys alike: `to(x, y)` in shares of the box, `by(dx, dy)` in steps.
  function follow(box, to, by, leave) {
    const point = (event) => {
      const area = box.getBoundingClientRect();
      to((event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
    };
    box.addEventListener("pointermove", point);
    box.addEventListener("pointerdown", point);
    box.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      by(...step);
    });
    box.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && leave());
    box.addEventListener("blur", leave);
  }

  function startPlots() {
    for (const hint of document.querySelectorAll(".note.hint")) hint.hidden = false;
    for (const plot of document.querySelectorAll("[data-plot]")) {
      const one = data.plots[plot.dataset.plot];
      if (one.series) followCurves(plot, one);
      else followHeat(plot, one);
    }
  }

  // --- attention maps ---

  const picks = document.getElementById("picks");
  const heads = document.getElementById("heads");
  const told = document.getElementById("told");
  const state = { sample: 0, kind: "cross", layer: 0, head: -1, cell: null }; // head −1: the average

  function labels() {
    const sample = data.attention[state.sample];
    if (state.kind === "encoder") return { rows: sample.source, columns: sample.source };
    if (state.kind === "decoder") return { rows: sample.read, columns: sample.read };
    return { rows: sample.written, columns: sample.source };
  }

  function weights(head) {
    const layer = data.attention[state.sample].maps[state.kind][state.layer];
    const maps = (head < 0 ? layer : [layer[head]]).map(bytes);
    return Float32Array.from(maps[0], (_, i) => maps.reduce((sum, map) => sum + map[i], 0) / maps.length / 255);
  }

  function headName(head) {
    return head < 0 ? say("average") : say("head", { n: head + 1 });
  }

  function color() {
    return getComputedStyle(root).getPropertyValue("--" + state.kind);
  }

  function thumbnail(head) {
    const { rows, columns } = labels();
    const canvas = make("canvas", { width: columns.length, height: rows.length, "aria-hidden": "true" });
    const brush = canvas.getContext("2d");
    brush.fillStyle = color();
    weights(head).forEach((weight, i) => {
      brush.globalAlpha = weight;
      brush.fillRect(i % columns.length, Math.floor(i / columns.length), 1, 1);
    });
    return canvas;
  }

  function showHeads() {
    const count = data.attention[state.sample].maps[state.kind][state.layer].length;
    if (state.head >= count) state.head = -1;
    const focused = heads.contains(document.activeElement);
    heads.replaceChildren(
      ...Array.from({ length: count + 1 }, (_, i) => {
        const button = make("button", { type: "button", "aria-pressed": String(i - 1 === state.head) });
        button.append(thumbnail(i - 1), headName(i - 1));
        button.addEventListener("click", () => {
          state.head = i - 1;
          showMap();
        });
        return button;
      }),
    );
    if (focused) heads.children[state.head + 1].focus();
  }

  function showLayers() {
    const count = data.attention[state.sample].maps[state.kind].length;
    state.layer = Math.min(state.layer, count - 1);
    document.getElementById("layers").replaceChildren(
      ...Array.from({ length: count }, (_, i) => {
        const input = make("input", { type: "radio", name: "layer", value: i, "aria-label": say("layer", { n: i + 1 }) });
        input.checked = i === state.layer;
        return make("label", {}, input, make("span", {}, String(i + 1)));
      }),
    );
  }

  const square = /^[\u2e80-\uffef]+$/; // Chinese and the like: stands upright in a column

  function textWidth(tokens) {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = "700 13px " + getComputedStyle(document.body).fontFamily;
    return Math.ceil(Math.max(...tokens.map((token) => pen.measureText(token).width)));
  }

  function showMap() {
    const { rows, columns } = labels();
    const values = weights(state.head);
    const rowAxis = say(state.kind === "cross" ? "rows.cross" : "rows.self");
    const left = Math.max(textWidth(rows), textWidth([rowAxis])) + 14;
    const top = textWidth(columns) + 34;
    const box = document.getElementById("maps");
    const size = Math.min(38, Math.max(21, Math.floor((box.clientWidth - left - 2) / columns.length)));
    const svg = document.createElementNS(svgSpace, "svg");
    const width = left + size * columns.length + 2, height = top + size * rows.length + 2;
    const kind = plain(picks.querySelector(`input[value=${state.kind}] + span .${inChinese() ? "zh" : "en"}`).innerHTML);
    const name = say("map", { kind, layer: state.layer + 1, head: headName(state.head) });
    const attributes = { class: "align " + state.kind, width, height, role: "img", tabindex: 0, "aria-label": name };
    for (const [key, value] of Object.entries(attributes)) svg.setAttribute(key, value);
    const place = { left, top, size };
    draw(svg, "text", { class: "axis start", x: left, y: 13 }, say("columns"));
    draw(svg, "text", { class: "axis end", x: left - 8, y: top - 8 }, rowAxis);
    const bands = drawBands(svg, rows, columns, place);
    drawCells(svg, rows, columns, values, place);
    const texts = drawLabels(svg, rows, columns, place);
    const here = draw(svg, "rect", { class: "here", width: size, height: size, visibility: "hidden" });
    const note = scrollNote(), wide = make("div", { class: "wide" }, svg);
    box.replaceChildren(note, wide);
    hintMore(wide, note);
    told.textContent = say("hint");
    followCells(svg, rows, columns, values, place, { ...texts, ...bands, here });
    document.getElementById("ramp").className = "legend ramps " + state.kind;
    for (const [i, button] of [...heads.children].entries())
      button.setAttribute("aria-pressed", String(i - 1 === state.head));
  }

  function drawBands(svg, rows, columns, { left, top, size }) {
    draw(svg, "rect", { class: "back", x: left, y: top, width: size * columns.length, height: size * rows.length });
    const row = draw(svg, "rect", { class: "band", x: 0, width: left + size * columns.length, height: size, visibility: "hidden" });
    const column = draw(svg, "rect", { class: "band", y: 20, width: size, height: top - 20 + size * rows.length, visibility: "hidden" });
    return { row, column };
  }

  function drawCells(svg, rows, columns, values, { left, top, size }) {
    rows.forEach((_, i) => {
      const row = values.subarray(i * columns.length, (i + 1) * columns.length);
      const best = row.indexOf(Math.max(...row));
      row.forEach((weight, j) => {
        const at = { x: left + j * size + 0.5, y: top + i * size + 0.5, width: size - 1, height: size - 1 };
        if (weight >= 0.004) draw(svg, "rect", { class: "cell", ...at, "fill-opacity": weight.toFixed(3) });
        if (j === best) draw(svg, "rect", { class: "best", ...at });
      });
    });
  }

  function drawLabels(svg, rows, columns, { left, top, size }) {
    const rowTexts = rows.map((token, i) =>
      draw(svg, "text", { class: "end", x: left - 8, y: top + size * (i + 0.5) + 4.5 }, token));
    const columnTexts = columns.map((token, j) => {
      const x = left + size * (j + 0.5);
      if (square.test(token)) return draw(svg, "text", { class: "upright", x, y: top - 7 }, token);
      return draw(svg, "text", { class: "start", transform: `translate(${x + 4.5} ${top - 7}) rotate(-90)` }, token);
    });
    return { rowTexts, columnTexts };
  }

  function followCells(svg, rows, columns, values, { left, top, size }, parts) {
    const show = (cell) => {
      state.cell = cell;
      const seen = cell ? "visible" : "hidden";
      for (const part of [parts.row, parts.column, parts.here]) part.setAttribute("visibility", seen);
      parts.rowTexts.forEach((text, i) => text.classList.toggle("on", !!cell && i === cell[0]));
      parts.columnTexts.forEach((text, j) => text.classList.toggle("on", !!cell && j === cell[1]));
      if (!cell) return (told.textContent = say("hint"));
      const [i, j] = cell;
      const x = left + j * size, y = top + i * size;
      parts.row.setAttribute("y", y);
      parts.column.setAttribute("x", x);
      parts.here.setAttribute("x", x);
      parts.here.setAttribute("y", y);
      const value = values[i * columns.length + j].toFixed(2);
      told.textContent = say(state.kind === "cross" ? "writing" : "reading", { row: rows[i], column: columns[j], value });
    };
    const within = (n, list) => Math.min(list.length - 1, Math.max(0, n));
    const full = { x: left + size * columns.length + 2, y: top + size * rows.length + 2 };
    follow(
      svg,
      (x, y) => {
        const i = Math.floor((y * full.y - top) / size), j = Math.floor((x * full.x - left) / size);
        show(i >= 0 && j >= 0 && i < rows.length && j < columns.length ? [i, j] : null);
      },
      (dx, dy) => show(state.cell ? [within(state.cell[0] + dy, rows), within(state.cell[1] + dx, columns)] : [0, 0]),
      () => show(null),
    );
  }

  function showAttention() {
    state.cell = null;
    showLayers();
    showHeads();
    showMap();
  }

  function startAttention() {
    if (!data.attention.length) return;
    const select = picks.elements.sample;
    data.attention.forEach((sample, i) => {
      select.append(make("option", { value: i }, `${i + 1}. ${sample.text}`));
    });
    picks.addEventListener("submit", (event) => event.preventDefault());
    picks.addEventListener("change", (event) => {
      const { name, value } = event.target;
      state[name] = name === "kind" ? value : Number(value);
      if (name === "layer") return void (showHeads(), showMap());
      showAttention();
    });
    state.kind = Object.keys(data.attention[0].maps)[0];
    state.layer = data.attention[0].maps[state.kind].length - 1;
    for (const element of [picks, heads, told, document.getElementById("ramp")]) element.hidden = false;
    languageListeners.push(showAttention);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showHeads);
  }

  // --- sounds ---

  // A line follows what is played; a click on the spectrogram plays from there, and one at a time.
  function startPlayers() {
    const players = [...document.querySelectorAll("audio")];
    for (const audio of players) {
      const heard = audio.previousElementSibling, scope = heard.querySelector(".scope");
      const line = scope.querySelector(".playhead"), length = Number(heard.dataset.seconds);
      const show = () => {
        line.hidden = audio.paused && audio.currentTime === 0;
        line.style.setProperty("--at", Math.min(1, audio.currentTime / length));
        if (!audio.paused) requestAnimationFrame(show);
      };
      audio.addEventListener("play", () => {
        for (const other of players) if (other !== audio) other.pause();
        show();
      });
      audio.addEventListener("seeked", show);
      audio.addEventListener("ended", () => (line.hidden = true));
      scope.addEventListener("click", (event) => {
        const box = scope.getBoundingClientRect();
        audio.currentTime = (length * (event.clientX - box.left)) / box.width;
        audio.play();
      });
    }
  }

  // --- commands ---

  function startCopying() {
    for (const block of document.querySelectorAll(".command")) {
      const button = make("button", { type: "button" });
      const name = () => (button.textContent = say("copy"));
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(block.querySelector("code").textContent);
        button.textContent = say("copied");
        setTimeout(name, 1500);
      });
      if (!navigator.clipboard) return; // then the text can still be selected
      languageListeners.push(name);
      block.append(button);
    }
  }

  // --- what is wider than its place ---

  // Phones show no scroll bar: the edge fades where there is more, and a line above says so.
  function hintMore(box, note) {
    const show = () => {
      const rest = box.scrollWidth - box.clientWidth;
      const sides = [rest > 1 && box.scrollLeft > 1 && "left", rest - box.scrollLeft > 1 && "right"];
      const more = sides.filter(Boolean).join(" ");
      if (more) box.dataset.more = more;
      else delete box.dataset.more;
      if (note) note.hidden = rest <= 1;
    };
    box.addEventListener("scroll", show, { passive: true });
    new ResizeObserver(show).observe(box);
  }

  function scrollNote() {
    return make("p", { class: "swipe", hidden: "" }, say("scroll"));
  }

  function startScrolling() {
    hintMore(document.querySelector("nav"));
    for (const box of document.querySelectorAll("main .wide")) {
      if (box.closest("#maps")) continue; // has its own, as it is drawn anew
      const note = scrollNote();
      box.before(note);
      languageListeners.push(() => (note.textContent = say("scroll")));
      hintMore(box, note);
    }
  }

  startScrolling();
  startPlots();
  startAttention();
  startPlayers();
  startCopying();
  startLanguage();
});
