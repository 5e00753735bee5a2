// One slider for all pictures: the newest picture of each prompt that is not newer than the chosen version.

export function syncGallery(cell, run, place, key) {
  const slider = cell.querySelector("[data-versions]");
  if (!slider) return;
  const versions = JSON.parse(slider.dataset.versions);
  slider.max = versions.length - 1;
  const stored = place.get(key);
  const wanted = stored === null ? versions.length - 1 : versions.indexOf(Number(stored));
  slider.value = wanted < 0 ? versions.length - 1 : wanted;
  show(cell, run, versions[slider.value]);
  slider.oninput = () => {
    const version = JSON.parse(slider.dataset.versions)[slider.value];
    place.set(key, Number(slider.value) === Number(slider.max) ? null : String(version));
    show(cell, run, version);
  };
}

function address(run, path) {
  return `/runs/${run}/media/${path.split("/").map(encodeURIComponent).join("/")}`;
}

function show(cell, run, version) {
  const words = cell.querySelector("[data-version-words]");
  if (words) words.textContent = version;
  for (const figure of cell.querySelectorAll("[data-strip]")) {
    const frames = JSON.parse(figure.dataset.strip).filter(([iteration]) => iteration <= version);
    const after = figure.querySelector("[data-after]");
    if (!after || !frames.length) continue;
    const [iteration, path, reward] = frames.at(-1);
    const source = address(run, path);
    const media = after.querySelector("img, video");
    if (media.getAttribute("src") !== source) media.setAttribute("src", source);
    const text = after.querySelector("small");
    text.firstChild.nodeValue = `after ${iteration} `;
    text.querySelector("b").textContent = reward;
  }
}
