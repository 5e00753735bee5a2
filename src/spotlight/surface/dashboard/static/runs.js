// The list of runs: refreshed every few seconds, and two runs to compare.

import { morph, parsed } from "./morph.js";

const EVERY_MS = 3000;
const cards = document.querySelector("[data-cards]");
const compare = document.querySelector("[data-compare]");
const chosen = [];

function choose(box) {
  const at = chosen.indexOf(box.value);
  if (box.checked && at < 0) chosen.push(box.value);
  if (!box.checked && at >= 0) chosen.splice(at, 1);
  while (chosen.length > 2) chosen.shift();
  for (const each of cards.querySelectorAll("input[type=checkbox]")) each.checked = chosen.includes(each.value);
  compare.disabled = chosen.length !== 2;
}

cards.addEventListener("change", (event) => choose(event.target));
compare.addEventListener("click", () => { location.href = `/pair/${chosen[0]}/${chosen[1]}`; });

async function refresh() {
  if (!document.hidden) {
    try {
      const response = await fetch("/cards");
      if (response.ok) {
        const wanted = document.createElement("div");
        wanted.setAttribute("data-cards", "");
        wanted.append(parsed(await response.text()));
        morph(cards, wanted);
        for (const each of cards.querySelectorAll("input[type=checkbox]")) each.checked = chosen.includes(each.value);
      }
    } catch { /* the server is away: the next try may find it */ }
  }
  setTimeout(refresh, EVERY_MS);
}
setTimeout(refresh, EVERY_MS);
