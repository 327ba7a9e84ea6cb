// The CRDs of cert-manager, by which tests check our objects. None of its code is built, or in this repository.
module gantry.dev/operator/tests/cert_manager

go 1.24.0

require github.com/cert-manager/cert-manager v1.21.2
