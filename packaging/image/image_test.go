package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const version = "1.0~rc1+2"

// build makes the images of two architectures, and returns their files by name.
func build(t *testing.T) map[string][]byte {
	t.Helper()
	dir := t.TempDir()
	args := []string{"--version", version, "--commit", "0123456789ab", "--epoch", "1700000000", "--licences", dir, "--out", dir}
	for _, name := range []string{"LICENSE", "LICENSES-OF-LIBRARIES", "amd64", "s390x"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("content of "+name), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "amd64" || name == "s390x" {
			args = append(args, name+"="+path)
		}
	}
	if err := run(args); err != nil {
		t.Fatal(err)
	}
	built := map[string][]byte{}
	for _, name := range []string{"oci", "linux-amd64-docker", "linux-s390x-docker"} {
		content, err := os.ReadFile(filepath.Join(dir, "longhaul-"+version+"-"+name+".tar"))
		if err != nil {
			t.Fatal(err)
		}
		built[name] = content
	}
	return built
}

// unpack returns the index of an OCI archive.
func unpack(t *testing.T, archive []byte) v1.ImageIndex {
	t.Helper()
	dir := t.TempDir()
	for files := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := files.Next()
		if err == io.EOF {
			break
		}
		path := filepath.Join(dir, h.Name)
		switch {
		case err == nil && h.Typeflag == tar.TypeDir:
			err = os.Mkdir(path, 0o700)
		case err == nil:
			var content []byte
			if content, err = io.ReadAll(files); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		t.Fatalf("%d images, %v", len(manifest.Manifests), err)
	}
	if name := manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"]; name != "1.0-rc1-2" {
		t.Errorf("the archive names the image %q", name)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// TestSameBytes: the same input gives the same bytes.
func TestSameBytes(t *testing.T) {
	first, second := build(t), build(t)
	for name := range first {
		if !bytes.Equal(first[name], second[name]) {
			t.Errorf("%s differs", name)
		}
	}
}

// TestImages reads the archives back: every digest fits, each architecture has its own
// program, and both formats have the same configuration.
func TestImages(t *testing.T) {
	built := build(t)
	index := unpack(t, built["oci"])
	if err := validate.Index(index); err != nil {
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("%d architectures, %v", len(manifest.Manifests), err)
	}
	for _, m := range manifest.Manifests {
		arch := m.Platform.Architecture
		image, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkImage(t, image, arch)
		opener := func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(built["linux-"+arch+"-docker"])), nil
		}
		docker, err := tarball.Image(opener, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := validate.Image(docker); err != nil {
			t.Error(err)
		}
		checkImage(t, docker, arch)
		one, err1 := image.ConfigName()
		other, err2 := docker.ConfigName()
		if one != other || err1 != nil || err2 != nil {
			t.Errorf("%s: configuration %v in OCI, %v for Docker; %v, %v", arch, one, other, err1, err2)
		}
	}
}

func checkImage(t *testing.T, image v1.Image, arch string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != arch || config.Config.User != "65532:65532" || config.Created.Unix() != 1700000000 {
		t.Errorf("%s: %s/%s, user %s, created %v", arch, config.OS, config.Architecture, config.Config.User, config.Created)
	}
	if h := config.Config.Healthcheck; h == nil || !slices.Equal(h.Test[:3], []string{"CMD", programPath, "ready"}) {
		t.Errorf("%s: health check %v", arch, h)
	}
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var got []string
	for files := tar.NewReader(content); ; {
		h, err := files.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.ModTime.Unix() != 1700000000 {
			t.Errorf("%s has the time %v", h.Name, h.ModTime)
		}
		got = append(got, fmt.Sprintf("%o %d:%d %s", h.Mode, h.Uid, h.Gid, h.Name))
		if text, _ := io.ReadAll(files); h.Name == "usr/bin/longhaul" && string(text) != "content of "+arch {
			t.Errorf("the program of %s is %q", arch, text)
		}
	}
	want := []string{
		"755 0:0 etc/", "644 0:0 etc/group", "755 0:0 etc/longhaul/", "644 0:0 etc/passwd", "1777 0:0 run/",
		"755 0:0 usr/", "755 0:0 usr/bin/", "755 0:0 usr/bin/longhaul", "755 0:0 usr/share/", "755 0:0 usr/share/doc/",
		"755 0:0 usr/share/doc/longhaul/", "644 0:0 usr/share/doc/longhaul/LICENSE",
		"644 0:0 usr/share/doc/longhaul/LICENSES-OF-LIBRARIES", "755 0:0 var/", "755 0:0 var/lib/",
		"700 65532:65532 var/lib/longhaul/",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s has\n%q, want\n%q", arch, got, want)
	}
}
