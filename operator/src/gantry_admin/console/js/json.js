// JSON for people: indented, with every literal exactly as it is in the body.
//
// `JSON.parse` decides whether a text is JSON. It is not used to print it: numbers that JavaScript cannot hold, such as an
// order number of twenty digits, would be shown as other numbers, and repeated keys would be lost.

const INDENT = "  ";
const DEPTH_MAX = 40; // Deeper levels are not indented further, so that a body of brackets does not become gigabytes.

/** Return a JSON object or array with line breaks and indentation; null if the text is anything else. */
export function prettyJson(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  const out = [];
  let depth = 0;
  const line = () => out.push("\n", INDENT.repeat(Math.min(depth, DEPTH_MAX)));
  for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[{]\s*[\]}]|[[\]{},:]|[^\s"[\]{},:]+/g)) {
    if (token === "[" || token === "{") {
      out.push(token);
      depth += 1;
      line();
    } else if (token === "]" || token === "}") {
      depth -= 1;
      line();
      out.push(token);
    } else if (token === ",") {
      out.push(token);
      line();
    } else if (token === ":") out.push(": ");
    else out.push(token.startsWith("[") || token.startsWith("{") ? token.replaceAll(/\s/g, "") : token);
  }
  return out.join("");
}
