// A small virtual DOM: elements are described by values and patched in place, so the focus is kept and the layout does
// not jump when numbers change.
//
// The invariant: **text is text.** No code of the console ever parses a string as markup, and the page's policy
// (`require-trusted-types-for`) makes the browser refuse it too. The content of a message is only ever shown as text.

const SVG = "http://www.w3.org/2000/svg";
const OLD = Symbol("last rendered nodes");
const AS_PROPERTY = new Set(["value", "checked", "disabled", "open", "hidden", "indeterminate"]);

/**
 * Describe an element: `h("p", {class: "note"}, "text", h("b", null, "more"))`. Null children are left out.
 *
 * `key` identifies it among its siblings. `created` and `updated` are called with the element. The children of an element
 * that is `opaque` are never changed here.
 */
export function h(tag, props, ...children) {
  return { tag, props: props ?? {}, children: flat(children) };
}

function flat(children) {
  const found = [];
  for (const child of children) {
    if (child === null || child === undefined || child === false || child === true) continue;
    if (Array.isArray(child)) found.push(...flat(child));
    else found.push(typeof child === "object" ? child : { text: String(child) });
  }
  return found;
}

/** Update the content of `root` to `nodes`. */
export function render(root, ...nodes) {
  const next = flat(nodes);
  patchChildren(root, root[OLD] ?? [], next, false);
  root[OLD] = next;
}

function keyOf(node, index) {
  if ("text" in node) return `#${index}`;
  return node.props.key === undefined ? `${node.tag}:${index}` : `${node.tag}=${node.props.key}`;
}

function patchChildren(parent, before, after, isSvg) {
  const old = new Map(before.map((node, index) => [keyOf(node, index), node]));
  let place = parent.firstChild;
  for (const [index, node] of after.entries()) {
    const key = keyOf(node, index);
    const found = old.get(key);
    if (found !== undefined) {
      old.delete(key);
      patch(found, node, isSvg);
    } else {
      node.element = create(node, isSvg);
    }
    if (node.element === place) place = place.nextSibling;
    else parent.insertBefore(node.element, place);
  }
  for (const node of old.values()) node.element.remove();
}

function create(node, isSvg) {
  if ("text" in node) return document.createTextNode(node.text);
  const inSvg = isSvg || node.tag === "svg";
  const element = inSvg ? document.createElementNS(SVG, node.tag) : document.createElement(node.tag);
  if (!node.props.opaque) patchChildren(element, [], node.children, inSvg && node.tag !== "foreignObject");
  for (const [name, value] of Object.entries(node.props)) set(element, name, value, undefined);
  node.props.created?.(element);
  return element;
}

function patch(before, after, isSvg) {
  const element = (after.element = before.element);
  if ("text" in after) {
    if (before.text !== after.text) element.nodeValue = after.text;
    return;
  }
  const inSvg = isSvg || after.tag === "svg";
  if (!after.props.opaque) patchChildren(element, before.children, after.children, inSvg);
  for (const name of Object.keys(before.props)) {
    if (!(name in after.props)) set(element, name, undefined, before.props[name]);
  }
  for (const [name, value] of Object.entries(after.props)) {
    if (value !== before.props[name] || AS_PROPERTY.has(name)) set(element, name, value, before.props[name]);
  }
  after.props.updated?.(element);
}

function set(element, name, value, before) {
  if (name === "key" || name === "created" || name === "updated" || name === "opaque") return;
  if (name.startsWith("on")) element[name] = value ?? null;
  else if (name === "style") setStyle(element, value ?? {}, before ?? {});
  else if (AS_PROPERTY.has(name)) {
    // The value of a field that has the focus is never overwritten, so that typing is not disturbed.
    if (value !== undefined && element[name] !== value && !(name === "value" && document.activeElement === element)) {
      element[name] = value;
    }
  } else if (value === undefined || value === null || value === false) element.removeAttribute(name);
  else element.setAttribute(name, value === true ? "" : String(value));
}

function setStyle(element, value, before) {
  for (const name of Object.keys(before)) if (!(name in value)) element.style.removeProperty(name);
  for (const [name, text] of Object.entries(value)) {
    if (before[name] !== text) element.style.setProperty(name, String(text));
  }
}
