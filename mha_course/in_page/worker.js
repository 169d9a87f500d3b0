// Python in a worker: only this function runs there, so it uses nothing from outside.
//
// The worker is a classic one made from a blob, because a page opened from disk may start no other. For the same
// reason it imports and fetches nothing: Pyodide's programs stand above this function in the worker's text, and its
// files come with the first message; `fetch` only hands them over.

/**
 * @typedef {{files: Object<string, string>, sources: Object<string, string>, compiled?: WebAssembly.Module}} Parts
 *   Pyodide's files, each compressed and in base64, and the course's files by path
 */

/** Unpacks what is compressed and in base64. A blob's own stream cannot be read there from disk in WebKit. @param {string} text */
export function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
  const packed = /** @type {ReadableStream} */ (new Response(bytes).body);
  return new Response(packed.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
}

/**
 * @param {any} scope the worker's global object
 * @param {typeof import("./kernels.js").createKernels} createKernels
 * @param {(text: string) => Promise<ArrayBuffer>} unpack
 */
export function work(scope, createKernels, unpack) {
  /** @type {Promise<(request: string) => string>} */
  let ready;

  /** Removes what a reader's code could use to leave the worker, before the code runs. */
  const close = () => {
    const ways = "fetch XMLHttpRequest WebSocket EventSource importScripts Worker indexedDB caches BroadcastChannel";
    // An assignment would leave what has no setter.
    for (const name of ways.split(" ")) Object.defineProperty(scope, name, { value: undefined });
  };

  /** Python may grow to 512 MB; beyond that it raises a MemoryError. */
  const limitMemory = () => {
    const { prototype } = WebAssembly.Memory;
    const { grow } = prototype;
    prototype.grow = function (pages) {
      if (this.buffer.byteLength + pages * 65536 > 2 ** 29) throw new RangeError();
      return grow.call(this, pages);
    };
  };

  /** Compiles Python's code, or takes what a previous worker has compiled. @param {WebAssembly.Module} [compiled] */
  const compileOnce = (compiled) => {
    scope.WebAssembly.instantiateStreaming = async (/** @type {Promise<Response>} */ source, /** @type {any} */ imports) => {
      const module = compiled ?? (await WebAssembly.compileStreaming(source));
      scope.postMessage({ compiled: module });
      return { module, instance: await WebAssembly.instantiate(module, imports) };
    };
  };

  /** @param {Parts} parts */
  const start = async ({ files, sources, compiled }) => {
    limitMemory();
    compileOnce(compiled);
    /** @type {Object<string, ArrayBuffer>} */
    const unpacked = {};
    await Promise.all(Object.entries(files).map(async ([name, text]) => (unpacked[name] = await unpack(text))));
    scope.fetch = async (/** @type {any} */ address) => {
      const name = String(address.url ?? address).split("/").pop() ?? "";
      const type = name.endsWith(".wasm") ? "application/wasm" : "application/octet-stream";
      return new Response(unpacked[name], { headers: { "Content-Type": type } });
    };
    const python = await scope.loadPyodide({
      createPyodideModule: scope.pyodideModule.default,
      indexURL: "https://in-the-page/",
      stdLibURL: "https://in-the-page/python_stdlib.zip",
      lockFileContents: new TextDecoder().decode(unpacked["pyodide-lock.json"]),
      jsglobals: {},
      stdin: () => null,
    });
    for (const [path, text] of Object.entries(sources)) {
      const place = path.lastIndexOf("/");
      if (place > 0) python.FS.mkdirTree(path.slice(0, place));
      python.FS.writeFile(path, text);
    }
    python.registerJsModule("mha_kernels", createKernels(python._module));
    const [judge, trainer] = ["session", "training"].map((name) => python.pyimport(name));
    close();
    return (/** @type {string} */ request) => ("train" in JSON.parse(request) ? trainer : judge).answer(request);
  };

  scope.onmessage = async (/** @type {MessageEvent} */ { data }) => {
    try {
      if (data.parts) {
        ready = start(data.parts);
        await ready;
        scope.postMessage({ ready: true });
      } else {
        scope.postMessage({ answer: (await ready)(data.request) });
      }
    } catch (error) {
      scope.postMessage({ failed: String(error) });
    }
  };
}
