// What Prometheus' operator makes of its own kinds, by which tests judge ours: nothing of it is built, or lies here.
module gantry.dev/operator/tests/prometheus

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
