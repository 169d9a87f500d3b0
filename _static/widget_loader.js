// Hosts the course's widgets in a built page: no kernel, no network, no widget manager.
//
// The page holds what the notebook stored: one script with the state of all models, and one small script where each
// widget was shown. A model's `_esm` is an ES module that follows anywidget's front-end contract (AFM): its default
// export has `render({ model, el })`, perhaps `initialize({ model })`, and each may return a clean-up.
(() => {
  const MIME = "application/vnd.jupyter.widget";
  const cleanUps = [];

  // The same text is imported once and styled once, however many widgets use it.
  const once = (make) => {
    const made = new Map();
    return (text) => made.get(text) ?? made.set(text, make(text)).get(text);
  };

  const addStyle = once((css) => {
    const style = document.createElement("style");
    style.textContent = css;
    return document.head.appendChild(style);
  });

  // A blob: address, because a page opened from disk may not import files.
  const importText = once(async (source) => {
    const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    return import(url).finally(() => URL.revokeObjectURL(url));
  });

  function createModel(state) {
    let listeners = []; // pairs of event and callback
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

  const keep = (result) => typeof result === "function" && cleanUps.push(result);

  // All views of a model share it, and its module is initialised once.
  const loadModel = (state) => {
    const model = createModel(state);
    const ready = importText(state._esm).then(async (module) => {
      const widget = typeof module.default === "function" ? await module.default() : module.default;
      keep(await widget.initialize?.({ model }));
      return widget;
    });
    return { model, ready };
  };

  async function show(view, load) {
    const host = document.createElement("div");
    host.className = "widget-host";
    view.before(host);
    try {
      const { state, model, ready } = load(JSON.parse(view.textContent).model_id);
      if (state._css) addStyle(state._css);
      keep(await (await ready).render({ model, el: host }));
      host.dataset.widget = "ready";
    } catch (error) {
      console.error(error);
      host.textContent = `This widget could not be started: ${error.message}`;
      host.dataset.widget = "failed"; // the style sheet then shows the figure that stands in for it
    }
  }

  function start() {
    const states = {};
    for (const script of document.querySelectorAll(`script[type="${MIME}-state+json"]`)) {
      Object.assign(states, JSON.parse(script.textContent).state);
    }
    const load = once((id) => {
      const state = states[id]?.state;
      if (!state?._esm) throw new Error("its code is not stored in this page.");
      return { state, ...loadModel(state) };
    });
    for (const view of document.querySelectorAll(`script[type="${MIME}-view+json"]:not([data-hosted])`)) {
      view.dataset.hosted = ""; // a page may name this loader twice
      show(view, load);
    }
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
  addEventListener("pagehide", (event) => {
    if (!event.persisted) for (const cleanUp of cleanUps.splice(0)) cleanUp();
  });
})();
