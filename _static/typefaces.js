// A browser decodes a typeface when it first draws with it, draws with another one meanwhile, and then moves the text.
for (const face of document.fonts ?? []) if (/Course|MJX/.test(face.family)) face.load();
