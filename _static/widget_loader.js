// Hosts the course's widgets in a built page: no kernel, no network, no widget manager.
//
// The page holds what the notebook stored: one script with the state of all models, and one small script
// at each place where a widget was shown. A model's `_esm` is an ES module that follows anywidget's front-end
// contract (AFM): its default export has `render({ model, el })` and may have `initialize({ model })`; each
// may return a clean-up function.
//
// The build stores every module and style sheet only once (see _ext/lighten.py): `_esm` and `_css` are then
// lists of indices into `texts`. The build also puts a host element, as high as the widget will be, before
// each view.
//
// Each model has one more trait, `_static`: the address of this script's folder, where a widget finds the files
// that the build has put there for it.
(() => {
  /** @typedef {import("../mha_course/widgets/shared/frame.js").Model} Model */
  /** @typedef {(arg: {model: Model, el?: HTMLElement}) => any} Start */
  /** @typedef {{initialize?: Start, render: Start}} Widget */

  const MIME = "application/vnd.jupyter.widget";
  const FOLDER = new URL(".", /** @type {HTMLScriptElement} */ (document.currentScript).src).href;
  /** @type {(() => void)[]} */
  const cleanUps = [];

  /**
   * Calls `make` only once for each text, however many widgets use it.
   * @template T
   * @param {(text: string) => T} make
   * @returns {(text: string) => T}
   */
  const once = (make) => {
    const made = new Map();
    return (text) => made.get(text) ?? made.set(text, make(text)).get(text);
  };

  const addStyle = once((css) => {
    const style = document.createElement("style");
    style.textContent = css;
    return document.head.appendChild(style);
  });

  // The address is a blob:, because a page opened from disk may not import files.
  const importText = once(async (source) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return import(url).finally(() => URL.revokeObjectURL(url));
  });

  /**
   * @param {Object<string, any>} state
   * @returns {Model & {send: () => void}}
   */
  function createModel(state) {
    /** @type {[event: string, callback: () => void][]} */
    let listeners = [];
    return {
      get: (name) => state[name],
      set(name, value) {
        if (Object.is(state[name], value)) return;
        state[name] = value;
        for (const [event, callback] of listeners) {
          if (event === `change:${name}` || event === "change") callback();
        }
      },
      on(event, callback) {
        listeners = [...listeners, [event, callback]];
      },
      off(event, callback) {
        listeners = listeners.filter(([e, c]) => (event && e !== event) || (callback && c !== callback));
      },
      save_changes() {}, // there is no kernel to tell
      send() {},
    };
  }

  const keep = (/** @type {any} */ result) => typeof result === "function" && cleanUps.push(result);

  // All views of a model share it, and its module is initialised once.
  const loadModel = (/** @type {Object<string, any>} */ state) => {
    const model = createModel(state);
    const ready = importText(state._esm).then(async (module) => {
      /** @type {Widget} */
      const widget = typeof module.default === "function" ? await module.default() : module.default;
      keep(await widget.initialize?.({ model }));
      return widget;
    });
    return { model, ready };
  };

  /**
   * The host that the build put before a view, or a new one.
   * @param {HTMLElement} view
   * @returns {HTMLElement}
   */
  function hostOf(view) {
    const before = view.previousElementSibling;
    if (before instanceof HTMLElement && before.matches(".widget-host:empty:not([data-widget])")) return before;
    const host = document.createElement("div");
    host.className = "widget-host";
    view.before(host);
    return host;
  }

  /**
   * @param {HTMLElement} view
   * @param {(id: string) => {styles: string[], model: Model, ready: Promise<Widget>}} load
   */
  async function show(view, load) {
    const host = hostOf(view);
    try {
      const { styles, model, ready } = load(JSON.parse(view.textContent).model_id);
      styles.forEach(addStyle);
      keep(await (await ready).render({ model, el: host }));
      host.dataset.widget = "ready";
    } catch (error) {
      console.error(error);
      host.textContent = `This widget could not be started: ${/** @type {Error} */ (error).message}`;
      host.dataset.widget = "failed"; // the style sheet then shows the figure that replaces the widget
    }
  }

  /**
   * The states of all models in the page, with the parts of their code joined.
   * @returns {Object<string, {state: Object<string, any>, styles: string[]}>}
   */
  function readModels() {
    /** @type {Object<string, {state: Object<string, any>, styles: string[]}>} */
    const models = {};
    for (const script of document.querySelectorAll(`script[type="${MIME}-state+json"]`)) {
      const { state, texts = [] } = JSON.parse(script.textContent);
      /** @type {(stored?: string | number[]) => string[]} */
      const parts = (stored = "") => (Array.isArray(stored) ? stored.map((place) => texts[place]) : [stored]);
      for (const [id, { state: traits }] of Object.entries(state)) {
        const own = { ...traits, _esm: parts(traits._esm).join(""), _static: FOLDER };
        models[id] = { state: own, styles: parts(traits._css).filter(Boolean) };
      }
    }
    return models;
  }

  /** Whether the reader has done something; where the page is then is where the reader wants it. */
  let isTouched = false;
  for (const sign of ["wheel", "touchstart", "pointerdown", "keydown"]) {
    addEventListener(sign, () => (isTouched = true), { once: true, passive: true, capture: true });
  }

  /**
   * Returns to the place that the address names. Safari moves the page up when a widget near its end starts, because for
   * one frame the widget has no height there. A page that was left and is shown again is where the reader left it.
   */
  function returnToPlace() {
    const [arrival] = performance.getEntriesByType("navigation");
    if (isTouched || /** @type {PerformanceNavigationTiming} */ (arrival)?.type !== "navigate") return;
    document.querySelector(":target")?.scrollIntoView({ behavior: "instant" });
  }

  function start() {
    /** @type {NodeListOf<HTMLElement>} */
    const views = document.querySelectorAll(`script[type="${MIME}-view+json"]:not([data-hosted])`);
    if (views.length === 0) return;
    const models = readModels();
    const load = once((id) => {
      const model = models[id];
      if (!model?.state._esm) throw new Error("its code is not stored in this page.");
      return { styles: model.styles, ...loadModel(model.state) };
    });
    const shown = Array.from(views, (view) => {
      view.dataset.hosted = ""; // a page may include this loader twice
      return show(view, load);
    });
    const afterTwoFrames = () => requestAnimationFrame(() => requestAnimationFrame(returnToPlace));
    Promise.all(shown).then(afterTwoFrames);
  }

  start(); // only views above this script; the others when the page is complete
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  addEventListener("pagehide", (event) => {
    if (!event.persisted) for (const cleanUp of cleanUps.splice(0)) cleanUp();
  });
})();
