package main

import (
	"slices"
	"strings"
	"testing"
)

func TestPrototypes(t *testing.T) {
	header := `
/* nvmlReturn_t DECLDIR nvmlInAComment(void); */
nvmlReturn_t DECLDIR nvmlShutdown(void); // nvmlReturn_t DECLDIR nvmlAlsoNot(void);
DEPRECATED(13.0) nvmlReturn_t DECLDIR nvmlOld (nvmlDevice_t device,
                                              unsigned int *value /* in MHz */);
nvmlReturn_t DECLDIR nvmlShutdown(void);
const DECLDIR char* nvmlErrorString(nvmlReturn_t result);
`
	got := prototypes(header)
	want := []prototype{{"nvmlShutdown", "void"}, {"nvmlOld", "nvmlDevice_t device, unsigned int *value"}}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHeaderWithoutFunctionsIsAnError(t *testing.T) {
	if err := write(&strings.Builder{}, prototypes("int main(void);")); err == nil {
		t.Error("no error: a header in an unknown form would make an empty library")
	}
}
