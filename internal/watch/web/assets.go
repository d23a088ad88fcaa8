package web

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"strings"
	"sync"
)

//go:embed static
var static embed.FS

// asset is an embedded file in its transfer forms.
type asset struct {
	plain, zipped []byte
	kind          string
	tag           string // ETag of the content
}

// assets reads the files once, at the first request.
var assets = sync.OnceValue(func() map[string]asset {
	all := map[string]asset{}
	for _, dir := range []string{"static", "static/pages", "static/uplot"} {
		entries, err := static.ReadDir(dir)
		if err != nil {
			panic("web: " + err.Error()) // the folder is embedded
		}
		for _, e := range entries {
			if e.IsDir() {
				continue
			}
			name := path.Join(dir, e.Name())
			plain, err := static.ReadFile(name)
			if err != nil {
				panic("web: " + err.Error())
			}
			all[strings.TrimPrefix(name, "static/")] = newAsset(e.Name(), plain)
		}
	}
	return all
})

func newAsset(name string, plain []byte) asset {
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // fails only for an invalid level
	_, _ = z.Write(plain)
	_ = z.Close() // writing to a buffer cannot fail
	sum := sha256.Sum256(plain)
	a := asset{plain: plain, zipped: b.Bytes(), tag: `"` + hex.EncodeToString(sum[:8]) + `"`}
	switch path.Ext(name) {
	case ".js": // the system's MIME table may be wrong here
		a.kind = "text/javascript; charset=utf-8"
	default:
		a.kind = mime.TypeByExtension(path.Ext(name))
	}
	if a.kind == "" {
		a.kind = "text/plain; charset=utf-8"
	}
	return a
}

func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if strings.HasSuffix(name, ".html") {
		http.NotFound(w, r)
		return
	}
	serveFile(w, r, name)
}

// pageFolders lists the first path elements of pages; one file renders all
// pages.
var pageFolders = []string{"flows", "tunnels", "pairs", "transfers", "causes", "events", "history"}

// servePage serves the file that renders every page from data.
func servePage(w http.ResponseWriter, r *http.Request) {
	folder, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if r.URL.Path == "/favicon.ico" {
		serveFile(w, r, "icon.svg")
		return
	}
	known := folder == ""
	for _, f := range pageFolders {
		known = known || f == folder
	}
	if !known {
		fail(w, http.StatusNotFound, "there is nothing here")
		return
	}
	serveFile(w, r, "index.html")
}

func serveFile(w http.ResponseWriter, r *http.Request, name string) {
	a, ok := assets()[name]
	if !ok {
		fail(w, http.StatusNotFound, "there is nothing here")
		return
	}
	h := w.Header()
	h.Set("Content-Type", a.kind)
	// The browser keeps the file and revalidates it each time.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", a.tag)
	h.Set("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == a.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body := a.plain
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		body = a.zipped
	}
	_, _ = w.Write(body)
}
