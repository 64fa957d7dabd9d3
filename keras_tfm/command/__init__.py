"""What commands of `keras-tfm` do; `keras_tfm_command` has their options."""
