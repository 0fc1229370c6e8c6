// Express under Datadog's tracer refuses the third request of two.
//
// with: dd-trace@5 express redis
// with: dd-trace@5 express ioredis
// run: DD_TRACE_STARTUP_LOGS=false node --require dd-trace/init lib/service.cjs
// expect: 200 200 429
