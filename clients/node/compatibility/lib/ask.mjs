// Waits for a service, then prints the statuses of so many requests: node lib/ask.mjs URL TIMES

import { statuses, up } from "./world.mjs";

const [, , url, times] = process.argv;
await up(new URL("/up", url));
console.log(await statuses(url, Number(times)));
