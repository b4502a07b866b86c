// Copies the browser files that gpulab ships from node_modules (exactly the
// versions of package-lock.json) to assets/web/vendor, with their licences.
// The copies are committed, so that building and running gpulab need neither
// npm nor a network.
//
//   npm ci && npm run vendor   write the copies
//   npm ci && npm run check    fail when a committed copy differs
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../../assets/web/vendor");

// The icons in use; webui's icon component knows no others.
const icons = [
  "arrow-right", "check", "circle-alert", "circle-check", "clock", "copy",
  "cpu", "download", "external-link", "gpu", "house", "info", "log-out",
  "monitor-cog", "moon", "notebook-pen", "play", "plus", "server", "shield-check",
  "square", "sun", "trash-2", "triangle-alert", "users", "x",
];

const files = [
  ["htmx.org", "dist/htmx.min.js", "htmx/htmx.min.js"],
  ["htmx.org", "dist/ext/hx-sse.min.js", "htmx/hx-sse.min.js"],
  ["htmx.org", "LICENSE", "htmx/LICENSE"],
  ["lucide-static", "LICENSE", "lucide/LICENSE"],
  ...icons.map((name) => ["lucide-static", `icons/${name}.svg`, `lucide/${name}.svg`]),
];

const versionOf = (name) =>
  JSON.parse(readFileSync(join(here, "node_modules", name, "package.json"), "utf8")).version;

// Minified files name a source map that is not shipped.
const withoutSourceMap = (text) => text.replace(/\n?\/\/# sourceMappingURL=.*\n?$/, "\n");

const wanted = new Map(
  files.map(([name, from, to]) => [
    to,
    withoutSourceMap(readFileSync(join(here, "node_modules", name, from), "utf8")),
  ]),
);
wanted.set(
  "versions.json",
  JSON.stringify(
    Object.fromEntries([...new Set(files.map(([name]) => name))].map((n) => [n, versionOf(n)])),
    null,
    2,
  ) + "\n",
);

function present() {
  try {
    return readdirSync(target, { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => relative(target, join(entry.parentPath ?? entry.path, entry.name)));
  } catch {
    return [];
  }
}

if (process.argv.includes("--check")) {
  const wrong = [
    ...present().filter((name) => !wanted.has(name)),
    ...[...wanted].filter(([name, text]) => {
      try {
        return readFileSync(join(target, name), "utf8") !== text;
      } catch {
        return true;
      }
    }).map(([name]) => name),
  ];
  if (wrong.length > 0) {
    console.error(`assets/web/vendor differs from package-lock.json: ${wrong.join(", ")}\nRun: npm ci && npm run vendor`);
    process.exit(1);
  }
  console.log(`${wanted.size} vendored files match package-lock.json`);
} else {
  rmSync(target, { recursive: true, force: true });
  for (const [name, text] of wanted) {
    mkdirSync(dirname(join(target, name)), { recursive: true });
    writeFileSync(join(target, name), text);
  }
  console.log(`${wanted.size} files vendored`);
}
