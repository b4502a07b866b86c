package doctor

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"
)

// certificate reads the first certificate in a PEM file. The error wraps
// fs.ErrNotExist or fs.ErrPermission where it is that.
func (h host) certificate(path string) (*x509.Certificate, error) {
	if _, err := os.Stat(h.path(path)); err != nil {
		return nil, err
	}
	f, err := os.Open(h.path(path))
	if err != nil {
		return nil, err
	}
	f.Close()
	for rest := []byte(h.read(path)); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, errors.New("there is no certificate in it")
		}
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
}

// unreadable tells what is kept from us from what is not there.
func unreadable(err error) bool { return errors.Is(err, fs.ErrPermission) }

// outOfTime says, as a sentence, why a certificate is not valid now, "" when it
// is.
func outOfTime(what string, cert *x509.Certificate, now time.Time) string {
	switch {
	case now.After(cert.NotAfter):
		return fmt.Sprintf("%s ran out on %s.", what, cert.NotAfter.Format(time.DateOnly))
	case now.Before(cert.NotBefore):
		return fmt.Sprintf("%s is not valid before %s.", what, cert.NotBefore.Format(time.DateOnly))
	}
	return ""
}

// theClock asks for the date, where a certificate is out of its time.
func theClock(now time.Time) string {
	return fmt.Sprintf("The clock says %s; if that is wrong, mend the clock first: `gpulab doctor clock`.",
		now.Format("2006-01-02 15:04"))
}
