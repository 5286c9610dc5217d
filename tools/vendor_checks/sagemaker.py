"""botocore's service model of SageMaker, and moto's service: refused, or created and described. Also compares enumerations."""

import json
import os
import sys

import boto3
import botocore.session
from botocore.validate import ParamValidator
from moto import mock_aws

os.environ.update(AWS_ACCESS_KEY_ID="testing", AWS_SECRET_ACCESS_KEY="testing", AWS_DEFAULT_REGION="us-east-1")
model = botocore.session.get_session().get_service_model("sagemaker")
shape = model.operation_model("CreateTrainingJob").input_shape


def outside(value, of, path=""):
    """Return values outside an enumeration of the model, which botocore's validator accepts."""
    if of.type_name == "structure":
        for name, inner in value.items():
            if name in of.members:
                yield from outside(inner, of.members[name], f"{path}.{name}")
    elif of.type_name == "list":
        for inner in value:
            yield from outside(inner, of.member, path)
    elif getattr(of, "enum", None) and value not in of.enum:
        yield f"{path.lstrip('.')}: {value!r} is not one of its values"


def refused(document):
    report = ParamValidator().validate(document, shape)
    if report.has_errors():
        return report.generate_report()
    return "; ".join(outside(document, shape)) or None


def described(client, document):
    client.create_training_job(**document)
    answer = client.describe_training_job(TrainingJobName=document["TrainingJobName"])
    kept = {name: answer[name] for name in document if name in answer}
    tags = client.list_tags(ResourceArn=answer["TrainingJobArn"])["Tags"]
    return {**kept, **({"Tags": tags} if tags else {})}


answers = []
given = json.load(sys.stdin)
with mock_aws():
    client = boto3.client("sagemaker")
    for number, document in enumerate(given["documents"]):
        why = refused(document)
        # A name can be used once.
        own = {**document, "TrainingJobName": f"{document.get('TrainingJobName', '')[:50]}-{number}"}
        answers.append({"refused": why, "described": None if why else described(client, own)})
enumerations = {name: list(model.shape_for(name).enum) for name in given.get("enumerations", [])}
print("RESULT " + json.dumps({"answers": answers, "enumerations": enumerations}, default=str))
