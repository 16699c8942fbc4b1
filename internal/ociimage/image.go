package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"
)

// image is what an image is made of. Its root has the files and the symbolic link /var/run, because runtimes
// name network namespaces by either path. There is no shell and no library.
type image struct {
	name, version, arch string
	files               []file
}

type file struct {
	name       string
	data       []byte
	executable bool
}

// Media types and names of the OCI image specification, version 1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"

	keyRefName = "org.opencontainers.image.ref.name"
	keyVersion = "org.opencontainers.image.version"
	// keyContainerd is the name that 'ctr images import' gives to the image.
	keyContainerd = "io.containerd.image.name"
)

// epoch is the time of everything in the image, so that it depends on its files alone.
var epoch = time.Unix(0, 0).UTC()

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

type runConfig struct {
	Entrypoint []string
	Cmd        []string
	Labels     map[string]string `json:",omitempty"`
}

type config struct {
	Created time.Time `json:"created"`
	platform
	Config runConfig `json:"config"`
	RootFS rootFS    `json:"rootfs"`
}

type manifest struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Config        descriptor   `json:"config"`
	Layers        []descriptor `json:"layers"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

// archive is the image layout as a tar archive.
func (i *image) archive() ([]byte, error) {
	root, err := i.root()
	if err != nil {
		return nil, err
	}
	layer, err := compress(root)
	if err != nil {
		return nil, err
	}
	blobs := map[string][]byte{}
	add := func(kind string, data []byte) descriptor {
		sum := digest(data)
		blobs["blobs/sha256/"+sum[len("sha256:"):]] = data
		return descriptor{MediaType: kind, Digest: sum, Size: len(data)}
	}
	here := platform{Architecture: i.arch, OS: "linux"}
	c := config{Created: epoch, platform: here, RootFS: rootFS{"layers", []string{digest(root)}},
		Config: runConfig{Entrypoint: []string{"/" + i.files[0].name}, Cmd: []string{"run"}}}
	if i.version != "" {
		c.Config.Labels = map[string]string{keyVersion: i.version}
	}
	m := manifest{2, typeManifest, add(typeConfig, encode(c)), []descriptor{add(typeLayer, layer)}}
	top := add(typeManifest, encode(m))
	top.Platform = &here
	top.Annotations = map[string]string{keyRefName: i.name, keyContainerd: i.name}
	blobs["index.json"] = encode(index{2, typeIndex, []descriptor{top}})
	blobs["oci-layout"] = []byte(`{"imageLayoutVersion":"1.0.0"}`)
	var entries []file
	for name, data := range blobs {
		entries = append(entries, file{name, data, false})
	}
	return pack(entries, "blobs/", "blobs/sha256/")
}

// root is the image's only layer.
func (i *image) root() ([]byte, error) {
	files := slices.Clone(i.files)
	return packWith(func(w *tar.Writer) error {
		return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "var/run", Linkname: "/run", Mode: 0o777, ModTime: epoch})
	}, files, "run/", "var/")
}

func pack(files []file, dirs ...string) ([]byte, error) {
	return packWith(func(*tar.Writer) error { return nil }, files, dirs...)
}

// packWith writes directories, what more adds, and files in the order of their names, all of root.
func packWith(more func(*tar.Writer) error, files []file, dirs ...string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range dirs {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o755, ModTime: epoch}); err != nil {
			return nil, err
		}
	}
	if err := more(w); err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Compare(a.name, b.name) })
	for _, f := range files {
		h := tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.data)), Mode: 0o644, ModTime: epoch}
		if f.executable {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func compress(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// encode writes v as JSON. All of its values can be written.
func encode(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return data
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}
