// Copies the browser files that gpulab ships from node_modules (exactly the
// versions of package-lock.json) to assets/web/vendor, with their licences, and
// the accessibility checker of the tests to internal/webui/testdata/axe.
// The copies are committed, so that building and running gpulab need neither
// npm nor a network.
//
//   npm ci && npm run vendor   write the copies
//   npm ci && npm run check    fail when a committed copy differs
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const shipped = join(here, "../../assets/web/vendor");
const tested = join(here, "../../internal/webui/testdata/axe");

// The icons in use; webui's icon component knows no others.
const icons = [
  "arrow-right", "check", "circle-alert", "circle-check", "clock", "copy",
  "cpu", "download", "external-link", "folder", "gauge", "gpu", "house", "info", "log-out",
  "monitor-cog", "moon", "notebook-pen", "package", "play", "plus", "server", "shield-check",
  "square", "sun", "trash-2", "triangle-alert", "users", "x",
];

// Folder → [package, file in it, name in the folder].
const folders = new Map([
  [shipped, [
    ["htmx.org", "dist/htmx.min.js", "htmx/htmx.min.js"],
    ["htmx.org", "dist/ext/hx-sse.min.js", "htmx/hx-sse.min.js"],
    ["htmx.org", "LICENSE", "htmx/LICENSE"],
    ["uplot", "dist/uPlot.iife.min.js", "uplot/uplot.min.js"],
    ["uplot", "dist/uPlot.min.css", "uplot/uplot.min.css"],
    ["uplot", "LICENSE", "uplot/LICENSE"],
    ["lucide-static", "LICENSE", "lucide/LICENSE"],
    ...icons.map((name) => ["lucide-static", `icons/${name}.svg`, `lucide/${name}.svg`]),
  ]],
  [tested, [
    ["axe-core", "axe.min.js", "axe.min.js"],
    ["axe-core", "LICENSE", "LICENSE"],
  ]],
]);

const versionOf = (name) =>
  JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8")).version;

// Minified files name a source map that is not shipped.
const withoutSourceMap = (text) => text.replace(/\n?\/\/# sourceMappingURL=.*\n?$/, "\n");

// wantedIn returns what a folder must hold: name → text.
function wantedIn(files) {
  const wanted = new Map(
    files.map(([name, from, to]) => [
      to,
      withoutSourceMap(readFileSync(join(here, "node_modules", name, from), "utf8")),
    ]),
  );
  const versions = [...new Set(files.map(([name]) => name))].map((name) => [name, versionOf(name)]);
  return wanted.set("versions.json", JSON.stringify(Object.fromEntries(versions), null, 2) + "\n");
}

function presentIn(folder) {
  try {
    return readdirSync(folder, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => relative(folder, join(entry.parentPath ?? entry.path, entry.name)));
  } catch {
    return [];
  }
}

function same(path, text) {
  try {
    return readFileSync(path, "utf8") === text;
  } catch {
    return false;
  }
}

const check = process.argv.includes("--check");
let count = 0;
const wrong = [];
for (const [folder, files] of folders) {
  const wanted = wantedIn(files);
  count += wanted.size;
  if (check) {
    wrong.push(...presentIn(folder).filter((name) => !wanted.has(name)));
    wrong.push(...[...wanted].filter(([name, text]) => !same(join(folder, name), text)).map(([name]) => name));
    continue;
  }
  rmSync(folder, { recursive: true, force: true });
  for (const [name, text] of wanted) {
    mkdirSync(dirname(join(folder, name)), { recursive: true });
    writeFileSync(join(folder, name), text);
  }
}
if (wrong.length > 0) {
  console.error(`Vendored files differ from package-lock.json: ${wrong.join(", ")}\nRun: npm ci && npm run vendor`);
  process.exit(1);
}
console.log(`${count} vendored files ${check ? "match package-lock.json" : "written"}`);
