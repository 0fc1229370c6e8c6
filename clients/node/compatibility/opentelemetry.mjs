// Express under OpenTelemetry refuses the third request of two.
//
// with: @opentelemetry/api @opentelemetry/auto-instrumentations-node express redis
// with: @opentelemetry/api @opentelemetry/auto-instrumentations-node express ioredis
// run: OTEL_TRACES_EXPORTER=none OTEL_METRICS_EXPORTER=none OTEL_LOGS_EXPORTER=none node --require @opentelemetry/auto-instrumentations-node/register lib/service.cjs | grep -v OpenTelemetry
// expect: 200 200 429
