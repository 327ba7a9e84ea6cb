// The CRDs of a release of the Gateway API in which TCPRoutes are experimental and have only the version v1alpha2.
module gantry.dev/operator/tests/gateway_api/former

go 1.24.0

require sigs.k8s.io/gateway-api v1.4.1
