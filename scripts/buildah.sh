# Sourced after common.sh by the image scripts: buildah with its storage in the clone and no daemon. Nothing is pushed to
# a registry.
need_root
need_command buildah "on Debian: apt-get install buildah"
IMAGE_FOLDER=$ROOT/.image
mkdir -p "$IMAGE_FOLDER/wheelhouse"
export BUILDAH_ISOLATION=chroot
SOURCES_LABEL=dev.gantry.sources
buildah() {
    command buildah --storage-driver vfs --root "$IMAGE_FOLDER/storage" --runroot "$IMAGE_FOLDER/run" "$@"
}
base_arguments() { # base_arguments [BASE [BUILD_BASE]]: print the options of a build on these images
    [ -n "${1:-}" ] || return 0
    build_base=${2:-$1-build}
    [ -n "${2:-}" ] || buildah inspect --type image "$build_base" >/dev/null 2>&1 || refuse \
        "there is no image $build_base, in which the hot path is compiled" "run scripts/local-base, or name an image with a C compiler"
    printf -- '--build-arg BASE=%s --build-arg BUILD_BASE=%s' "$1" "$build_base"
}
write_archive() { # write_archive IMAGE FILE: write the image, with its SBOM and the checksum of its sources next to it
    rm -f "$2.sources" "$2.draft"
    copy_sbom "$1" "$2.cdx.json"
    buildah push --quiet "$1" "docker-archive:$2.draft:localhost/$1:latest"
    mv "$2.draft" "$2"
    printf '%s\n' "$(sources_checksum_of "$1")" >"$2.sources"
}
copy_sbom() { # copy_sbom IMAGE FILE: write the SBOM that the image contains
    container=$(buildah from --pull-never "$1")
    mounted=$(buildah mount "$container")
    cp "$mounted/usr/share/gantry/sbom.cdx.json" "$2" || {
        buildah rm "$container" >/dev/null
        refuse "the image $1 contains no SBOM" "build it again"
    }
    buildah rm "$container" >/dev/null
}
sources_checksum_of() { # sources_checksum_of IMAGE: print the checksum of its sources
    buildah inspect --type image --format "{{index .OCIv1.Config.Labels \"$SOURCES_LABEL\"}}" "$1"
}
