package doctor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpulab/gpulab/internal/webca"
)

// certified is a machine with the certificates that gpulab makes for names.
func certified(t *testing.T, names ...string) (h host, folder string, certs *webca.Certs) {
	t.Helper()
	h = machine(t, map[string]string{"/var/lib/gpulab/identity.json": "{}"})
	folder = h.path("/var/lib/gpulab/tls")
	certs, err := webca.Ensure(folder, names)
	if err != nil {
		t.Fatal(err)
	}
	return h, folder, certs
}

func TestWebCertificates(t *testing.T) {
	finds(t, machine(t, nil), "webcertificates", Options{}, OK, "no certificates yet")

	h, _, _ := certified(t, "192.0.2.7", "lab.example.org", "localhost")
	finds(t, h, "webcertificates", Options{}, OK)
	finds(t, h, "webcertificates", Options{Address: "192.0.2.7", Names: []string{"LAB.example.org"}}, OK)
	finds(t, h, "webcertificates", Options{Names: []string{"gpu.example.org"}}, Warn, "does not name gpu.example.org.")
	finds(t, h, "webcertificates", Options{Address: "198.51.100.1"}, Warn, "does not name 198.51.100.1.")

	// The clock, or time itself.
	h.now = func() time.Time { return time.Now().AddDate(1, 2, 0) }
	finds(t, h, "webcertificates", Options{}, Fail, "The certificate of the pages ran out on", "`gpulab doctor clock`", "rm -f /var/lib/gpulab/tls/web.pem")
	h.now = func() time.Time { return time.Now().AddDate(-1, 0, 0) }
	finds(t, h, "webcertificates", Options{}, Fail, "authority's certificate is not valid before", "mend the clock first")
	h.now = func() time.Time { return time.Now().AddDate(11, 0, 0) }
	finds(t, h, "webcertificates", Options{}, Fail, "authority's certificate ran out")
}

func TestWebCertificatesOfOthers(t *testing.T) {
	_, other, _ := certified(t, "192.0.2.7")
	running := labSays(Lab{URL: "https://192.0.2.7"}, nil)

	h, folder, _ := certified(t, "192.0.2.7")
	copyFile(t, filepath.Join(other, "web.pem"), filepath.Join(folder, "web.pem"))
	finds(t, h, "webcertificates", Options{}, Fail, "not signed by the lab's authority", "rm -f /var/lib/gpulab/tls/web.pem")

	h, folder, _ = certified(t, "192.0.2.7")
	copyFile(t, filepath.Join(other, "ca.crt"), filepath.Join(folder, "ca.crt"))
	finds(t, h, "webcertificates", running, Fail, "do not belong together", "`curl -fksS https://192.0.2.7/ca.crt -o /var/lib/gpulab/tls/ca.crt`")
	finds(t, h, "webcertificates", labSays(Lab{}, ErrNoDaemon), Fail, "from a backup", "`rm -f /var/lib/gpulab/tls/ca.crt /var/lib/gpulab/tls/ca.key; gpulab init`")

	for _, content := range []string{"", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "no PEM"} {
		h, folder, _ = certified(t, "192.0.2.7")
		write(t, filepath.Join(folder, "web.pem"), content)
		finds(t, h, "webcertificates", running, Warn, "web.pem, cannot be read")
		write(t, filepath.Join(folder, "ca.crt"), content)
		finds(t, h, "webcertificates", running, Fail, "ca.crt cannot be read", "`curl ")
	}
	h, folder, _ = certified(t, "192.0.2.7")
	if err := errors.Join(os.Remove(filepath.Join(folder, "ca.crt"))); err != nil {
		t.Fatal(err)
	}
	f := finds(t, h, "webcertificates", running, Fail, "no such file")
	if strings.Contains(f.Mend, "rm ") {
		t.Errorf("nothing is to be deleted: %s", f.Mend)
	}
}

// TestWebCertificatesWithoutRoot: what may be read is looked at.
func TestWebCertificatesWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read everything")
	}
	h, folder, _ := certified(t, "192.0.2.7")
	h.euid = os.Geteuid()
	if err := os.Chmod(filepath.Join(folder, "web.pem"), 0); err != nil {
		t.Fatal(err)
	}
	finds(t, h, "webcertificates", Options{}, OK, "only root can read")
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	write(t, to, string(content))
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
