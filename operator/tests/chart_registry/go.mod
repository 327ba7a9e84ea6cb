// The OCI registry of the chart tests: one that keeps its content in memory, and listens on the loopback address.
module gantry.dev/operator/chart-registry

go 1.24.0

tool github.com/google/go-containerregistry/cmd/registry

require github.com/google/go-containerregistry v0.20.6 // indirect
