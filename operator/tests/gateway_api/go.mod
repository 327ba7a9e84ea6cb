// The CRDs of the Gateway API, by which tests check our objects. None of its code is built, or in this repository.
module gantry.dev/operator/tests/gateway_api

go 1.24.0

require sigs.k8s.io/gateway-api v1.6.3
