package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/webca"
)

func newCA(a *app) *cobra.Command {
	var fingerprint, trust, untrust bool
	c := &cobra.Command{
		Use: "ca", Short: "Print the certificate authority of the lab's pages, or trust it here",
		Long: `The lab signs its own web certificates. Browsers warn until they trust the
authority printed here; the page /trust shows the steps for each device.
Compare the fingerprint before you trust it.`,
		Example: "  sudo gpulab ca > gpulab-ca.crt\n  sudo gpulab ca --fingerprint\n  sudo gpulab ca --trust",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if fingerprint && (trust || untrust) || trust && untrust {
				return fail(exitUsage, "--fingerprint, --trust and --untrust exclude each other; choose one")
			}
			if err := requireRoot(c); err != nil {
				return err
			}
			cfg, err := loadConfig(a.configPath)
			if err != nil {
				return err
			}
			switch {
			case fingerprint:
				fp, err := caFingerprint(cfg)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(c.OutOrStdout(), fp)
				return err
			case trust:
				return trustCA(c.OutOrStdout(), cfg)
			case untrust:
				return untrustCA(c.OutOrStdout(), cfg)
			}
			pem, err := readCA(cfg)
			if err != nil {
				return err
			}
			_, err = c.OutOrStdout().Write(pem)
			return err
		},
	}
	c.Flags().BoolVar(&fingerprint, "fingerprint", false, "print its SHA-256 fingerprint")
	c.Flags().BoolVar(&trust, "trust", false, "trust it on this machine (system, Chromium, Firefox)")
	c.Flags().BoolVar(&untrust, "untrust", false, "undo --trust")
	return c
}

func readCA(cfg config.Config) ([]byte, error) {
	data, err := os.ReadFile(filepath.Join(tlsDir(cfg), "ca.crt"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fail(exitNotRunning, "there is no certificate authority yet; start the lab with `gpulab init`")
	}
	return data, err
}

func caFingerprint(cfg config.Config) (string, error) {
	pem, err := readCA(cfg)
	if err != nil {
		return "", err
	}
	return webca.Fingerprint(pem)
}

// trustCA makes this machine's programs trust the lab's pages.
func trustCA(out io.Writer, cfg config.Config) error {
	pem, err := readCA(cfg)
	if err != nil {
		return err
	}
	for _, line := range webca.Trust(pem) {
		fmt.Fprintln(out, "  "+line)
	}
	return nil
}

// untrustCA undoes trustCA, whoever called it.
func untrustCA(out io.Writer, cfg config.Config) error {
	pem, err := readCA(cfg)
	if err != nil {
		return err
	}
	for _, line := range webca.Untrust(pem) {
		fmt.Fprintln(out, "  "+line)
	}
	return nil
}
