package main

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	programPath = "/usr/bin/longhaul"

	// user is a number, since Kubernetes cannot tell whether a name is root's.
	user, userID = 65532, "65532"
)

// file is a file or directory of the image. Its owner is root unless it says otherwise.
type file struct {
	path    string // a directory ends with a slash
	mode    int64
	owner   int
	content []byte
}

// files lists everything in an image. In /run every user can make the directory of the
// control socket, be it of the image or of a mount there. A new volume at
// /var/lib/longhaul, for the history, gets the owner of the image's directory.
func (r *release) files(program string) ([]file, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	all := []file{
		{path: "etc/", mode: 0o755},
		{path: "etc/group", mode: 0o644, content: []byte("root:x:0:\nlonghaul:x:" + userID + ":\n")},
		{path: "etc/longhaul/", mode: 0o755},
		{path: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\n" +
			"longhaul:x:" + userID + ":" + userID + ":longhaul:/:/sbin/nologin\n")},
		{path: "run/", mode: 0o1777},
		{path: "usr/", mode: 0o755},
		{path: "usr/bin/", mode: 0o755},
		{path: "usr/bin/longhaul", mode: 0o755, content: binary},
		{path: "usr/share/", mode: 0o755},
		{path: "usr/share/doc/", mode: 0o755},
		{path: "usr/share/doc/longhaul/", mode: 0o755},
		{path: "var/", mode: 0o755},
		{path: "var/lib/", mode: 0o755},
		{path: "var/lib/longhaul/", mode: 0o700, owner: user},
	}
	for _, name := range []string{"LICENSE", "LICENSES-OF-LIBRARIES"} {
		text, err := os.ReadFile(filepath.Join(r.licences, name))
		if err != nil {
			return nil, err
		}
		all = append(all, file{path: "usr/share/doc/longhaul/" + name, mode: 0o644, content: text})
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

// layer makes the one layer of an image.
func (r *release) layer(program string, kind types.MediaType) (v1.Layer, error) {
	all, err := r.files(program)
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	if err := r.writeTar(&content, all); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(kind), tarball.WithCompressedCaching)
}

// tarDirectory writes the files of a directory as a tar file.
func (r *release) tarDirectory(w io.Writer, dir string) error {
	var all []file
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		if d.IsDir() {
			all = append(all, file{path: path + "/", mode: 0o755})
			return nil
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		all = append(all, file{path: path, mode: 0o644, content: content})
		return err
	})
	if err != nil {
		return err
	}
	return r.writeTar(w, all)
}

// writeTar writes a tar file. Only the files decide its bytes.
func (r *release) writeTar(w io.Writer, all []file) error {
	t := tar.NewWriter(w)
	for _, f := range all {
		header := tar.Header{
			Typeflag: tar.TypeReg, Name: f.path, Size: int64(len(f.content)), Mode: f.mode,
			Uid: f.owner, Gid: f.owner, ModTime: r.time, Format: tar.FormatUSTAR,
		}
		if strings.HasSuffix(f.path, "/") {
			header.Typeflag = tar.TypeDir
		}
		if err := t.WriteHeader(&header); err != nil {
			return err
		}
		if _, err := t.Write(f.content); err != nil {
			return err
		}
	}
	return t.Close()
}
