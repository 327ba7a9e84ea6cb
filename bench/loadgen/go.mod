module gantry.dev/bench/loadgen

go 1.22
