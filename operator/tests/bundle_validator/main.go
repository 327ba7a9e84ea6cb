// Command bundle-validator validates an OLM bundle in a folder, without a network or a cluster.
//
//	bundle-validator FOLDER
//
// It runs the validators of the Operator Framework that `operator-sdk bundle validate FOLDER --select-optional
// suite=operatorframework` runs, in the versions that operator-sdk 1.42 pins: the format and the content of the
// bundle (operator-registry), and the default and optional validators (api). It also runs the validator of objects,
// which operator-sdk leaves out. Each finding is one line that begins with `error: ` or `warning: `. The exit code is
// 0 without errors, 1 with errors, and 2 if the folder could not be read.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
	interfaces "github.com/operator-framework/api/pkg/validation/interfaces"
	"github.com/operator-framework/operator-registry/pkg/lib/bundle"
	"github.com/sirupsen/logrus"
)

// validators are the default ones, those of the suite `operatorframework`, and the one of objects. Of the others, one
// is deprecated and one pulls images.
var validators = append(
	interfaces.Validators{
		validation.OperatorHubV2Validator,
		validation.StandardCapabilitiesValidator,
		validation.StandardCategoriesValidator,
		validation.AlphaDeprecatedAPIsValidator,
		validation.GoodPracticesValidator,
		validation.ObjectValidator,
	},
	validation.DefaultBundleValidators...,
)

// findings are the lines to print, each once: the two libraries share some rules.
type findings struct {
	lines    []string
	errors   int
	warnings int
}

func (found *findings) add(level string, message string) {
	line := level + ": " + message
	for _, other := range found.lines {
		if other == line {
			return
		}
	}
	found.lines = append(found.lines, line)
	if level == "error" {
		found.errors++
	} else {
		found.warnings++
	}
}

// addAll adds an error of operator-registry, which may contain several.
func (found *findings) addAll(err error) {
	var several bundle.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &several):
		for _, one := range several.Errors {
			found.add("error", one.Error())
		}
	default:
		found.add("error", err.Error())
	}
}

// validate returns the findings of all validators, or an error if the folder has no bundle that can be read.
func validate(folder string) (*findings, error) {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	found := &findings{}
	format := bundle.NewImageValidator(nil, logrus.NewEntry(logger))
	if _, err := os.Stat(filepath.Join(folder, bundle.ManifestsDir)); err != nil {
		return nil, err
	}
	found.addAll(format.ValidateBundleFormat(folder))
	found.addAll(format.ValidateBundleContent(filepath.Join(folder, bundle.ManifestsDir)))
	read, err := manifests.GetBundleFromDir(folder)
	if err != nil {
		return nil, err
	}
	if read.CSV == nil {
		found.add("error", "no ClusterServiceVersion in the bundle")
		return found, nil
	}
	objects := read.ObjectsToValidate()
	for _, validator := range validators {
		for _, result := range validator.Validate(objects...) {
			for _, one := range result.Errors {
				found.add("error", one.Error())
			}
			for _, one := range result.Warnings {
				found.add("warning", one.Error())
			}
		}
	}
	return found, nil
}

func main() {
	if len(os.Args) != 2 || os.Args[1] == "-h" || os.Args[1] == "--help" {
		fmt.Fprintln(os.Stderr, "usage: bundle-validator FOLDER, which contains manifests/ and metadata/")
		os.Exit(2)
	}
	found, err := validate(os.Args[1])
	if err != nil {
		fmt.Fprintf(os.Stderr, "bundle-validator: %s is no bundle: %v\n", os.Args[1], err)
		os.Exit(2)
	}
	for _, line := range found.lines {
		fmt.Println(line)
	}
	fmt.Printf("%d errors, %d warnings\n", found.errors, found.warnings)
	if found.errors > 0 {
		os.Exit(1)
	}
}
