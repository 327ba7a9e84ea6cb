# Sourced after common.sh by the image scripts: buildah with its storage in the clone, no daemon, no registry.
need_root
need_command buildah "on Debian: apt-get install buildah"
IMAGE_FOLDER=$ROOT/.image
mkdir -p "$IMAGE_FOLDER/wheelhouse"
export BUILDAH_ISOLATION=chroot
buildah() {
    command buildah --storage-driver vfs --root "$IMAGE_FOLDER/storage" --runroot "$IMAGE_FOLDER/run" "$@"
}
