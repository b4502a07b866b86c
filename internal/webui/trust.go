package webui

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/http"
	"strings"
)

// A trustView explains the browser's warning and how to end it on each kind of
// device, the visitor's own first.
type trustView struct {
	Name        string // of the certificate authority, as devices show it
	Fingerprint string // SHA-256, in the form devices show
	Yours       device
	Others      []device
}

// A device is a kind of device or browser with the steps to trust a
// certificate authority on it.
type device struct {
	key, Name string
	Steps     []instruction
}

type instruction struct{ Text, Command string }

// devices lists what people come with. %s is the authority's name.
var devices = []device{
	{"ios", "iPhone and iPad", []instruction{
		{Text: "Open this page in Safari, tap “Download the certificate” and then “Allow”."},
		{Text: "Open Settings → General → VPN & Device Management, tap “%s” and then “Install”."},
		{Text: "Open Settings → General → About → Certificate Trust Settings and switch “%s” on. Without this step Safari " +
			"shows pages but refuses notebooks’ connections."},
		{Text: "Close Safari’s tabs of this lab and open the lab again."},
	}},
	{"macos", "Mac (Safari, Chrome, Edge)", []instruction{
		{Text: "Download the certificate and double-click it; Keychain Access adds it to the keychain “login”."},
		{Text: "In Keychain Access find “%s”, double-click it, open “Trust” and choose “Always Trust”."},
		{Text: "Quit the browser and open the lab again."},
	}},
	{"windows", "Windows (Edge, Chrome)", []instruction{
		{Text: "Download the certificate, double-click it and choose “Install Certificate…”, then “Current User”."},
		{Text: "Choose “Place all certificates in the following store”, “Browse…”, “Trusted Root Certification " +
			"Authorities”, and finish."},
		{Text: "Windows asks once more and shows a thumbprint. Confirm, close the browser and open the lab again."},
	}},
	{"android", "Android (Chrome)", []instruction{
		{Text: "Download the certificate."},
		{Text: "Open Settings and search for “CA certificate” (Security & privacy → More security → Encryption & " +
			"credentials → Install a certificate → CA certificate)."},
		{Text: "Tap “Install anyway” and choose the downloaded file, then open the lab again."},
	}},
	{"linux", "Debian, Ubuntu and other Linux (Chromium, Chrome)", []instruction{
		{Text: "Download the certificate."},
		{Text: "Open chrome://settings/certificates, choose “Local certificates” (or “Authorities”), import the file " +
			"under trusted certificates and tick “websites”. Or in a terminal (package libnss3-tools):",
			Command: `certutil -d sql:$HOME/.pki/nssdb -A -t C,, -n gpulab -i ~/Downloads/gpulab-ca.crt`},
		{Text: "Close the browser and open the lab again."},
		{Text: "For other programs, such as curl and Python, add it to the system:",
			Command: "sudo cp ~/Downloads/gpulab-ca.crt /usr/local/share/ca-certificates/\nsudo update-ca-certificates"},
	}},
	{"firefox", "Firefox on any computer", []instruction{
		{Text: "Download the certificate."},
		{Text: "Open Settings → Privacy & Security → Certificates → View Certificates… → Authorities → Import…, choose " +
			"the file and tick “Trust this CA to identify websites”."},
		{Text: "Reload this lab’s pages. On Windows and Mac, Firefox also takes what the system trusts."},
	}},
}

// deviceOf guesses the kind of device from what the browser says it is.
func deviceOf(userAgent string) string {
	has := func(word string) bool { return strings.Contains(userAgent, word) }
	switch {
	case has("iPhone"), has("iPad"):
		return "ios"
	case has("Android"):
		return "android"
	case has("Firefox/"):
		return "firefox"
	case has("Macintosh"):
		return "macos" // iPads may say this too; their steps are one tap below
	case has("Windows"):
		return "windows"
	}
	return "linux"
}

func (s *Server) trustPage(w http.ResponseWriter, r *http.Request, v visitor) error {
	certificate, err := s.authority()
	if err != nil {
		return err
	}
	view := trustViewOf(certificate, r.UserAgent())
	s.render(w, r, http.StatusOK, trustPage(s.page(w, r, v, "Trust this lab", ""), view))
	return nil
}

func trustViewOf(certificate *x509.Certificate, userAgent string) trustView {
	view := trustView{Name: certificate.Subject.CommonName, Fingerprint: fingerprint(certificate.Raw)}
	yours := deviceOf(userAgent)
	for _, d := range devices {
		named := device{key: d.key, Name: d.Name}
		for _, step := range d.Steps {
			step.Text = strings.ReplaceAll(step.Text, "%s", view.Name)
			named.Steps = append(named.Steps, step)
		}
		if d.key == yours {
			view.Yours = named
		} else {
			view.Others = append(view.Others, named)
		}
	}
	return view
}

// authority parses the lab's certificate authority.
func (s *Server) authority() (*x509.Certificate, error) {
	block, _ := pem.Decode(s.cfg.CA())
	if block == nil {
		return nil, &problem{status: http.StatusNotFound, title: "This lab has no certificate authority of its own",
			text:     "Its certificate comes from elsewhere; if the browser warns, tell an admin of the lab.",
			linkText: "Go to the home page", link: "/"}
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the web CA: %w", err)
	}
	return certificate, nil
}

// fingerprint writes the SHA-256 of a certificate the way devices show it.
func fingerprint(der []byte) string {
	sum := sha256.Sum256(der)
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = fmt.Sprintf("%02X", b)
	}
	return strings.Join(pairs, ":")
}

func (s *Server) downloadCA(w http.ResponseWriter, r *http.Request, _ visitor) error {
	certificate, err := s.authority()
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-x509-ca-cert")
	w.Header().Set("Content-Disposition", `attachment; filename="gpulab-ca.crt"`)
	if r.Method != http.MethodHead {
		// Only the certificate itself is written, whatever else the PEM holds;
		// an error means that the client went away.
		_ = pem.Encode(w, &pem.Block{Type: "CERTIFICATE", Bytes: certificate.Raw})
	}
	return nil
}
