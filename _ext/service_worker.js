// Keeps each page that the reader has opened, with all that it loaded, so that it opens again without a network.
//
// A page comes from the network where there is one, so a reader never sees an older one. The copies of a build have a
// store of their own: this file names its build (_ext/offline.py), so after a new build a browser installs it again,
// fetches anew what it has kept, and removes the older store. It looks at no address outside the book.
const STORE = "course-BUILD";
const TITLES = {}; // the path of each page and its title, written by the build
const ROOT = new URL("./", location.href).href;

/** The address under which something is kept: without what follows a question mark in the address of a page. */
function keyOf(address) {
  const url = new URL(address);
  url.hash = "";
  if (/\.html$|\/$/.test(url.pathname)) url.search = "";
  if (url.pathname.endsWith("/")) url.pathname += "index.html";
  return url.href;
}

async function keep(address, response) {
  const isWhole = response.status === 200 && response.type === "basic" && !response.redirected;
  if (isWhole && address.startsWith(ROOT)) await (await caches.open(STORE)).put(keyOf(address), response);
}

/** Keeps files of the book; one that cannot be fetched now is left out, and kept when it is next opened. */
async function keepAll(addresses) {
  const ours = [...new Set(addresses)].filter((address) => address.startsWith(ROOT));
  const one = async (address) => keep(address, await fetch(address, { cache: "no-cache" }));
  await Promise.allSettled(ours.map(one));
}

const escape = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

/** What a reader without a network sees instead of a page that is not kept: links to those that are. */
async function offlinePage() {
  const kept = new Set((await (await caches.open(STORE)).keys()).map(({ url }) => url));
  const pages = Object.entries(TITLES).filter(([path]) => kept.has(ROOT + path));
  const links = pages.map(([path, title]) => `<li><a href="${ROOT}${path}">${escape(title)}</a></li>`);
  const text = `<!DOCTYPE html><html lang="en"><meta charset="utf-8" />
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'" />
<meta name="viewport" content="width=device-width" /><title>No network</title>
<style>:root { color-scheme: light dark; }
body { font: 1.1rem/1.6 system-ui, sans-serif; max-width: 38rem; margin: 2rem auto; padding: 0 1rem; }</style>
<main><h1>This page needs a network once</h1>
<p>There is no network now, and you have not opened this page before. Pages that you have opened work without one:</p>
<ul>${links.join("")}</ul></main></html>`;
  return new Response(text, { status: 503, headers: { "Content-Type": "text/html; charset=utf-8" } });
}

async function answer(request) {
  try {
    // The browser's own store would give a page that it has had for less than some minutes.
    const response = await fetch(request, request.mode === "navigate" ? { cache: "no-cache" } : {});
    await keep(request.url, response.clone()).catch(() => {}); // a full disk keeps nothing more
    return response;
  } catch (error) {
    const kept = await (await caches.open(STORE)).match(keyOf(request.url), { ignoreVary: true });
    if (kept) return kept;
    if (request.mode === "navigate") return offlinePage();
    throw error;
  }
}

const olderStores = async () => (await caches.keys()).filter((name) => name.startsWith("course-") && name !== STORE);

addEventListener("install", (event) => {
  const renew = async () => {
    const stores = await Promise.all((await olderStores()).map((name) => caches.open(name)));
    const kept = (await Promise.all(stores.map((store) => store.keys()))).flat();
    await keepAll(kept.map(({ url }) => url));
    await skipWaiting();
  };
  event.waitUntil(renew());
});
addEventListener("activate", (event) => {
  const begin = async () => {
    await Promise.all((await olderStores()).map((name) => caches.delete(name)));
    await clients.claim();
  };
  event.waitUntil(begin());
});
addEventListener("fetch", (event) => {
  const { method, url } = event.request;
  if (method === "GET" && url.startsWith(ROOT)) event.respondWith(answer(event.request));
});
// A page that was opened before there was a service worker names what it has loaded.
addEventListener("message", (event) => event.waitUntil(keepAll(event.data)));
