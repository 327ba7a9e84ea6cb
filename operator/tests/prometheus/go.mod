// The CRDs of Prometheus' operator, by which tests check our objects. None of its code is built, or in this repository.
module gantry.dev/operator/tests/prometheus

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
