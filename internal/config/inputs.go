package config

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// FindImages finds the folder with the container images.
func (c *Config) FindImages() (string, error) {
	var tried []string
	candidates := []string{c.ImagesDir}
	if c.ImagesDir == "" {
		candidates = []string{"/usr/share/gpulab/images"}
		if exe, err := os.Executable(); err == nil {
			candidates = slices.Insert(candidates, 0, filepath.Join(filepath.Dir(exe), "images"))
		}
	}
	for _, d := range candidates {
		_, err := os.Stat(filepath.Join(d, "images.json"))
		if err == nil {
			return d, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return "", fmt.Errorf("only root can look for the container images in %s: %w", d, fs.ErrPermission)
		}
		tried = append(tried, d)
	}
	return "", fmt.Errorf("the container images are in none of %s; build them with `go tool task images`, or install "+
		"the package gpulab-images", strings.Join(tried, ", "))
}

// Inputs is a digest of what a daemon with this configuration starts from.
func (c *Config) Inputs() (string, error) {
	dir, err := c.FindImages()
	if err != nil {
		return "", err
	}
	list, err := os.ReadFile(filepath.Join(dir, "images.json"))
	if err != nil {
		return "", fmt.Errorf("container images: %w", err)
	}
	return c.Digest(list)
}

// Digest is of the configuration and of what else an appliance starts from.
func (c *Config) Digest(list []byte) (string, error) {
	config, err := yaml.Marshal(c)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(append(config, list...))
	return hex.EncodeToString(sum[:8]), nil
}

// FilesNamed are the files that the configuration names, each once.
func (c *Config) FilesNamed() []string {
	list := []string{c.Mail.PasswordFile, c.Mail.CAFile, c.TLS.Certificate, c.TLS.Key}
	for _, p := range c.SignIn {
		list = append(list, p.ClientSecretFile, p.BindPasswordFile, p.CAFile)
	}
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(path string) bool { return path == "" })
}
