// Time as it passes on a connection, also where a test puts fake timers in place of the real ones later.

export const { setImmediate, setTimeout } = globalThis;

export const now = performance.now.bind(performance);

export const eventLoopUtilization = performance.eventLoopUtilization.bind(performance);
