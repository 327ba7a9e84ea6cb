// Drives a gRPC proxy with RocketMQ's Node.js SDK, and judges what arrives: every message once at least, none changed.
//
//     node main.mjs ENDPOINTS SUFFIX FLOW:MESSAGES ...
//
// Topics are named `sdk-<kind><suffix>` and groups `sdk-<flow><suffix>`; they exist before. It prints one JSON line for
// each flow. The exit code is 0 if every flow is ok.

import { FLOWS } from './flows.mjs';
import { Run } from './run.mjs';

const [endpoints, suffix, ...flows] = process.argv.slice(2);
let isOk = flows.length > 0;
for (const one of flows) {
  const [flow, count] = one.split(':');
  let verdict;
  try {
    verdict = await FLOWS[flow](new Run(endpoints, suffix, flow, Number(count)));
  } catch (error) {
    verdict = { ok: false, expected: 0, received: 0, copies: 0, note: String(error?.stack ?? error) };
  }
  isOk &&= verdict.ok;
  console.log(JSON.stringify({ flow, ...verdict }));
}
process.exit(isOk ? 0 : 1);
