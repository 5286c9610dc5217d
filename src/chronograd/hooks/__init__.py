"""Recording of loops in other libraries: callbacks for Lightning, Hugging Face's Trainer and Accelerate, one file each."""
