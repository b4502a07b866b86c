package doctor

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
)

// probeWebCertificates looks at the authority that people's browsers trust, and
// at the certificate of the pages.
func probeWebCertificates(h host, opts Options) []Finding {
	folder := filepath.Join(opts.DataDir, "tls")
	ca, err := h.certificate(filepath.Join(folder, "ca.crt"))
	switch {
	case unreadable(err):
		return []Finding{{Probe: "webcertificates", State: Unseen, Seen: "Only root can read the certificates."}}
	case err != nil && !h.exists(filepath.Join(folder, "ca.key")):
		return []Finding{{Probe: "webcertificates", State: OK,
			Seen: "There are no certificates yet; `gpulab init` makes them."}}
	case err != nil:
		return []Finding{{
			Probe: "webcertificates", State: Fail,
			Seen:  fmt.Sprintf("The authority's certificate %s cannot be read: %v.", filepath.Join(folder, "ca.crt"), err),
			Means: "gpulab does not start again without it.",
			Mend:  h.restoreCA(opts, folder),
		}}
	}
	if late := outOfTime("The authority's certificate", ca, h.now()); late != "" {
		return []Finding{{
			Probe: "webcertificates", State: Fail, Seen: late,
			Means: "No browser opens the pages any more. " + theClock(h.now()),
			Mend: fmt.Sprintf("If the clock is right, run `rm %s/ca.crt %s/ca.key; %s`; every browser then has to trust the "+
				"new one.", folder, folder, h.restart(opts)),
		}}
	}
	if h.isRoot() && !h.fitsKey(ca, filepath.Join(folder, "ca.key")) {
		return []Finding{{
			Probe: "webcertificates", State: Fail,
			Seen: fmt.Sprintf("The authority's certificate and its key, %s and ca.key, do not belong together.",
				filepath.Join(folder, "ca.crt")),
			Means: "One of them was replaced; gpulab does not start again like that.",
			Mend:  h.restoreCA(opts, folder),
		}}
	}
	return []Finding{h.webCertificate(opts, folder, ca)}
}

// restoreCA is how the authority's certificate comes back: the running gpulab
// has it in memory, and hands it to whoever asks.
func (h host) restoreCA(opts Options, folder string) string {
	if lab, err := h.ask(); err == nil && lab.URL != "" {
		return fmt.Sprintf("gpulab, which runs, still has the right one: run `curl -fksS %s/ca.crt -o %s/ca.crt`.", lab.URL,
			folder)
	}
	return fmt.Sprintf("Put both files back from a backup; or run `rm -f %s/ca.crt %s/ca.key; gpulab init`, after "+
		"which every browser has to trust the new one.", folder, folder)
}

func (h host) fitsKey(cert *x509.Certificate, keyFile string) bool {
	block, _ := pem.Decode([]byte(h.read(keyFile)))
	if block == nil {
		return false
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return false
	}
	private, ok := key.(*ecdsa.PrivateKey)
	return ok && private.PublicKey.Equal(cert.PublicKey)
}

// webCertificate looks at what the pages show. gpulab makes it anew when it
// starts, and when an address changes.
func (h host) webCertificate(opts Options, folder string, ca *x509.Certificate) Finding {
	path := filepath.Join(folder, "web.pem")
	anew := fmt.Sprintf("To have it made anew, run `rm -f %s; %s`.", path, h.restart(opts))
	web, err := h.certificate(path)
	if unreadable(err) {
		return Finding{
			Probe: "webcertificates", State: OK, Seen: "The authority's certificate is good until " +
				ca.NotAfter.Format("2006-01-02") + "; that of the pages only root can read.",
		}
	}
	finding := Finding{Probe: "webcertificates", State: Fail, Mend: anew}
	switch {
	case err != nil:
		finding.Seen = fmt.Sprintf("The certificate of the pages, %s, cannot be read: %v.", path, err)
		finding.Means = "What gpulab wrote there was changed or deleted. It makes another at its next start."
		finding.State = Warn
	case web.CheckSignatureFrom(ca) != nil:
		finding.Seen = fmt.Sprintf("The certificate of the pages, %s, is not signed by the lab's authority.", path)
		finding.Means = "Somebody has put another there; browsers that trust the lab refuse it, and gpulab makes its own " +
			"at its next start."
	case outOfTime("", web, h.now()) != "":
		finding.Seen = outOfTime("The certificate of the pages", web, h.now())
		finding.Means = "Browsers refuse it. A running gpulab renews it a month before its end. " + theClock(h.now())
	default:
		if missing := h.unnamed(web, opts); len(missing) > 0 {
			finding.State = Warn
			finding.Seen = "The certificate of the pages does not name " + strings.Join(missing, ", ") + "."
			finding.Means = "Browsers warn when people open the lab there. A running gpulab follows a changed address within " +
				"seconds."
			return finding
		}
		return Finding{
			Probe: "webcertificates", State: OK, Seen: "The web certificates are good until " +
				web.NotAfter.Format("2006-01-02") + " and fit the lab's names and address.",
		}
	}
	return finding
}

// unnamed are the names and the address that people use and a certificate lacks.
func (h host) unnamed(web *x509.Certificate, opts Options) (missing []string) {
	wanted := opts.Names
	if opts.Address != "" {
		wanted = append([]string{opts.Address}, wanted...)
	}
	for _, name := range wanted {
		if web.VerifyHostname(strings.ToLower(name)) != nil {
			missing = append(missing, name)
		}
	}
	for _, base := range opts.Wildcards {
		if web.VerifyHostname("n1."+base) != nil {
			missing = append(missing, "*."+base)
		}
	}
	if opts.Address != "" {
		return missing
	}
	prefixes, err := h.addresses()
	if err != nil {
		return missing
	}
	usable := usableAddresses(prefixes)
	for _, address := range usable {
		if web.VerifyHostname(address.String()) == nil {
			return missing
		}
	}
	if len(usable) > 0 {
		missing = append(missing, "any address of this machine ("+join(usable)+")")
	}
	return missing
}
