// Make one element equal to another in place, so that focus, open tables and scroll positions stay.
// Elements with data-keep get new attributes but keep their content, which a script owns.

const OWN = new Set(["open", "value", "tabindex"]);

export function morph(old, wanted) {
  if (old.isEqualNode(wanted)) return old;
  if (old.nodeName !== wanted.nodeName) {
    old.replaceWith(wanted);
    return wanted;
  }
  attributes(old, wanted);
  if (!wanted.hasAttribute("data-keep")) children(old, wanted);
  return old;
}

function attributes(old, wanted) {
  for (const { name, value } of wanted.attributes) {
    if (old.getAttribute(name) !== value && !(OWN.has(name) && old.hasAttribute(name))) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!wanted.hasAttribute(name) && !OWN.has(name) && !name.startsWith("data-own-")) old.removeAttribute(name);
  }
}

function children(old, wanted) {
  const before = [...old.childNodes];
  const after = [...wanted.childNodes];
  after.forEach((node, index) => {
    const present = before[index];
    if (!present) old.append(node);
    else if (present.nodeType !== node.nodeType) present.replaceWith(node);
    else if (node.nodeType === Node.ELEMENT_NODE) morph(present, node);
    else if (present.nodeValue !== node.nodeValue) present.nodeValue = node.nodeValue;
  });
  before.slice(after.length).forEach((node) => node.remove());
}

export function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  return template.content;
}
