// The second judge of histories: Porcupine, with a model of a queue and of the offset of a consumer's group.
module gantry.dev/histories/porcupine

go 1.22

require github.com/anishathalye/porcupine v1.3.1
