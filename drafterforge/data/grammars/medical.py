"""Medical prompts for education: conditions, drugs, anatomy, lab values, symptoms, case vignettes, notes in plain words."""

# Templates and word lists keep one entry a line.
# ruff: noqa: E501

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

from drafterforge.data.grammars.base import Writer, an, capital, crossed, fill, framed, lines, rows

CONDITIONS = lines("""
high blood pressure
type 1 diabetes
type 2 diabetes
gestational diabetes
asthma
chronic obstructive pulmonary disease
pneumonia
acute bronchitis
influenza
the common cold
tuberculosis
sleep apnea
pulmonary embolism
deep vein thrombosis
atrial fibrillation
heart failure
coronary artery disease
a heart attack
stroke
a transient ischemic attack
peripheral artery disease
varicose veins
iron-deficiency anemia
sickle cell disease
hemophilia
hypothyroidism
hyperthyroidism
Cushing's syndrome
Addison's disease
polycystic ovary syndrome
endometriosis
menopause
preeclampsia
osteoporosis
osteoarthritis
rheumatoid arthritis
gout
fibromyalgia
lupus
ankylosing spondylitis
carpal tunnel syndrome
plantar fasciitis
a herniated disk
sciatica
rotator cuff tendinitis
tennis elbow
acid reflux
peptic ulcer disease
celiac disease
lactose intolerance
irritable bowel syndrome
Crohn's disease
ulcerative colitis
diverticulitis
appendicitis
gallstones
acute pancreatitis
fatty liver disease
hepatitis B
hepatitis C
cirrhosis
hemorrhoids
kidney stones
a urinary tract infection
chronic kidney disease
an enlarged prostate
urinary incontinence
migraine
tension headache
epilepsy
multiple sclerosis
Parkinson's disease
Alzheimer's disease
delirium
Bell's palsy
shingles
peripheral neuropathy
restless legs syndrome
concussion
meningitis
depression
generalized anxiety disorder
panic disorder
bipolar disorder
schizophrenia
post-traumatic stress disorder
attention deficit hyperactivity disorder
insomnia
anorexia nervosa
alcohol use disorder
eczema
psoriasis
acne
rosacea
hives
impetigo
scabies
athlete's foot
melanoma
breast cancer
colorectal cancer
prostate cancer
lung cancer
leukemia
cataracts
glaucoma
macular degeneration
conjunctivitis
otitis media
tinnitus
vertigo
tonsillitis
sinusitis
hay fever
anaphylaxis
measles
chickenpox
whooping cough
mononucleosis
Lyme disease
malaria
tetanus
an HIV infection
chlamydia
food poisoning
dehydration
heat stroke
hypothermia
sepsis
croup
febrile seizures
""")

CONDITION_KINDS = {
    "overview": (
        "What is {topic}?",
        "Explain {topic} in plain language.",
        "Give me a short overview of {topic}: what it is, how common it is and how serious it can be.",
        "Explain {topic} to a {age}-year-old.",
        "My {relative} was told it might be {topic}. What does that mean?",
    ),
    "symptoms": (
        "What are the typical symptoms of {topic}?",
        "How do I recognize {topic}, and what else can look similar?",
        "List the early signs of {topic} and the warning signs that need urgent care.",
        "Which symptoms of {topic} are often missed in older people?",
        "symptoms of {topic}?",
    ),
    "causes": (
        "What causes {topic}?",
        "What are the main risk factors for {topic}? Which of them can be changed?",
        "Does {topic} run in families?",
        "Who is most likely to get {topic}, and why?",
    ),
    "mechanism": (
        "Describe the pathophysiology of {topic} at the level of a second-year medical student.",
        "What happens in the body in {topic}? Explain it step by step.",
        "For my nursing exam: how does the mechanism of {topic} explain its symptoms?",
    ),
    "diagnosis": (
        "How do doctors diagnose {topic}?",
        "Which tests are usually done when {topic} is suspected, and what do they show?",
        "Give a differential diagnosis for a patient in whom {topic} is suspected, with one distinguishing feature each.",
        "What questions would a doctor ask someone who may have {topic}?",
    ),
    "treatment": (
        "How is {topic} usually treated?",
        "What are the treatment options for {topic}, with and without medication?",
        "What is the first thing to do in case of {topic}, and what comes later?",
        "Summarize the general principles of managing {topic} in {n} bullet points.",
        "Is {topic} curable, and what does treatment aim for?",
    ),
    "living with": (
        "What can someone with {topic} do at home to feel better or stay safe?",
        "How does {topic} affect daily life, work and exercise?",
        "Which questions should I ask my doctor after a diagnosis of {topic}?",
        "What diet or lifestyle advice is usually given for {topic}?",
        "How can I support my {relative}, who has {topic}?",
    ),
    "prevention": (
        "Can {topic} be prevented? If so, how?",
        "What complications can follow {topic}, and how can the risk be lowered?",
        "Is there a screening test or a vaccine for {topic}? Who should have it?",
    ),
    "leaflet": (
        "Write a patient leaflet about {topic}, at most {limit} words, without jargon.",
        "Draft a short information sheet on {topic} for a clinic waiting room, with headings.",
        "Write {n} frequently asked questions about {topic} with short answers for patients.",
        "Write a script of about {limit} words in which a nurse explains {topic} to a worried parent or relative.",
    ),
    "exam": (
        "Write {n} multiple-choice questions about {topic} with explanations of the answers.",
        "Make {n} flash cards on {topic} for nursing students.",
        "What are the {n} facts about {topic} that a medical student must know for an exam?",
        "Give me a mnemonic for the main features of {topic}.",
    ),
}

# class | an example | what it is used for
DRUGS = lines("""
ACE inhibitors | lisinopril | high blood pressure
angiotensin receptor blockers | losartan | high blood pressure
beta blockers | metoprolol | a fast heart rate
calcium channel blockers | amlodipine | high blood pressure
thiazide diuretics | hydrochlorothiazide | high blood pressure
loop diuretics | furosemide | fluid in the legs and lungs
potassium-sparing diuretics | spironolactone | heart failure
statins | atorvastatin | high cholesterol
nitrates | nitroglycerin | chest pain from narrowed heart arteries
cardiac glycosides | digoxin | a fast, irregular heartbeat
vitamin K antagonists | warfarin | preventing blood clots
direct oral anticoagulants | apixaban | preventing stroke in atrial fibrillation
antiplatelet drugs | clopidogrel | preventing a second heart attack
heparins | enoxaparin | preventing clots after surgery
biguanides | metformin | type 2 diabetes
sulfonylureas | glipizide | type 2 diabetes
SGLT2 inhibitors | empagliflozin | type 2 diabetes
GLP-1 receptor agonists | semaglutide | type 2 diabetes and weight
rapid-acting insulins | insulin lispro | blood sugar at meals
long-acting insulins | insulin glargine | blood sugar between meals
thyroid hormones | levothyroxine | an underactive thyroid
antithyroid drugs | methimazole | an overactive thyroid
glucocorticoids | prednisone | inflammation
bisphosphonates | alendronate | thin bones
nonsteroidal anti-inflammatory drugs | ibuprofen | pain and inflammation
simple pain relievers | acetaminophen | pain and fever
opioids | morphine | severe pain
triptans | sumatriptan | migraine attacks
xanthine oxidase inhibitors | allopurinol | preventing gout
muscle relaxants | cyclobenzaprine | muscle spasms
local anesthetics | lidocaine | numbing the skin
proton pump inhibitors | omeprazole | acid reflux
H2 blockers | famotidine | heartburn
antacids | calcium carbonate | heartburn
osmotic laxatives | polyethylene glycol | constipation
antidiarrheals | loperamide | diarrhea
antiemetics | ondansetron | nausea
penicillins | amoxicillin | bacterial infections
cephalosporins | cephalexin | skin infections
macrolides | azithromycin | airway infections
tetracyclines | doxycycline | acne and tick-borne infections
fluoroquinolones | ciprofloxacin | complicated urinary infections
antifungals | fluconazole | yeast infections
antivirals for herpes | acyclovir | cold sores and shingles
short-acting bronchodilators | albuterol | sudden wheezing
inhaled corticosteroids | budesonide | long-term control of asthma
inhaled anticholinergics | tiotropium | COPD
leukotriene blockers | montelukast | asthma and allergies
antihistamines | cetirizine | hay fever
decongestants | pseudoephedrine | a blocked nose
selective serotonin reuptake inhibitors | sertraline | depression and anxiety
serotonin-norepinephrine reuptake inhibitors | venlafaxine | depression
tricyclic antidepressants | amitriptyline | nerve pain
benzodiazepines | lorazepam | acute anxiety
atypical antipsychotics | quetiapine | psychosis
mood stabilizers | lithium | bipolar disorder
stimulants | methylphenidate | ADHD
antiseizure drugs | levetiracetam | epilepsy
dopamine precursors | levodopa | Parkinson's disease
cholinesterase inhibitors | donepezil | memory loss
combined oral contraceptives | ethinyl estradiol with levonorgestrel | contraception
alpha blockers | tamsulosin | trouble passing urine
PDE5 inhibitors | sildenafil | erectile dysfunction
immunosuppressants | methotrexate | rheumatoid arthritis
TNF inhibitors | adalimumab | Crohn's disease
iron supplements | ferrous sulfate | anemia
epinephrine autoinjectors | epinephrine | severe allergic reactions
""")
DRUG_KINDS = {
    "mechanism": (
        "How do {drugs} work?",
        "Explain the mechanism of action of {drugs}, with {example} as the example.",
        "Why do {drugs} help against or in {use}? Keep it simple.",
    ),
    "side effects": (
        "What are the common and the serious side effects of {drugs}?",
        "Which side effects of {example} should make a patient call the doctor?",
        "I was prescribed {example} for {use}. What side effects should I look out for?",
    ),
    "counseling": (
        "Write the points a pharmacist should cover when {example} is dispensed for the first time.",
        "What should a patient know before taking {example}? Use plain language and avoid exact doses.",
        'Write a leaflet paragraph headed "Before you take {example}".',
        "What should someone do after missing a dose of {example}, in general terms?",
    ),
    "interactions": (
        "Which drugs, foods or supplements can interact with {drugs}, in general terms?",
        "What should be monitored in a patient who takes {example}?",
        "Who should not take {drugs}, or only with care?",
        "Can people who take {example} for {use} drink alcohol?",
    ),
    "exam": (
        "Write a multiple-choice question about {drugs} for pharmacology students, with the answer explained.",
        "Compare {drugs} with another class used for {use}.",
        "Give me a memory aid for the class, mechanism and main adverse effects of {example}.",
        "Which class does {example} belong to, what is it used for, and what is one important warning?",
    ),
}

INTERACTIONS = lines("""
warfarin | ibuprofen
warfarin | leafy green vegetables
warfarin | St. John's wort
lisinopril | potassium supplements
simvastatin | grapefruit juice
metformin | contrast dye for a CT scan
levothyroxine | iron tablets
levothyroxine | coffee
doxycycline | milk
ciprofloxacin | antacids
sertraline | sumatriptan
sertraline | tramadol
lithium | ibuprofen
lithium | a low-salt diet
digoxin | furosemide
nitroglycerin | sildenafil
metronidazole | alcohol
acetaminophen | alcohol
lorazepam | alcohol
lorazepam | opioids
clopidogrel | omeprazole
aspirin | ibuprofen
prednisone | ibuprofen
methotrexate | trimethoprim
spironolactone | lisinopril
birth control pills | rifampin
birth control pills | St. John's wort
beta blockers | insulin
cetirizine | sleeping pills
pseudoephedrine | high blood pressure
alendronate | breakfast
amlodipine | grapefruit juice
an MAO inhibitor | aged cheese
theophylline | smoking
calcium supplements | iron tablets
fluoxetine | dextromethorphan
allopurinol | azathioprine
an antibiotic | a probiotic
""")
INTERACTION_ASKS = (
    "Is it safe to combine {first} with {second}? Explain in general terms what may happen.",
    "Why is caution advised when {first} meets {second}?",
    "Explain the interaction between {first} and {second} to a pharmacy student.",
    "My {relative} takes {first} and asks about {second}. What should I tell them to discuss with the pharmacist?",
    "{first_cap} and {second}: is there a known interaction, how does it come about, and how is it handled?",
)

ANATOMY = lines("""
the left ventricle
the heart valves
the coronary arteries
the aorta
the conduction system of the heart
the portal vein
the diaphragm
the alveoli
the trachea and bronchi
the larynx
the esophagus
the stomach
the duodenum
the appendix
the colon
the liver
the gallbladder and bile ducts
the pancreas
the spleen
the kidneys
the nephron
the bladder
the adrenal glands
the pituitary gland
the hypothalamus
the thyroid gland
the parathyroid glands
the thymus
the lymph nodes
the bone marrow
red blood cells
platelets
white blood cells
the brain stem
the cerebellum
the hippocampus
the motor cortex
the spinal cord
the vagus nerve
the sciatic nerve
the facial nerve
the autonomic nervous system
the blood-brain barrier
the meninges
the retina
the lens of the eye
the inner ear
the eardrum
the skin
the knee joint
the hip joint
the rotator cuff
the spine and its disks
the Achilles tendon
the pelvic floor
the uterus
the ovaries
the placenta
the prostate
the testicles
""")
ANATOMY_KINDS = {
    "function": (
        "What is the function of {topic}?",
        "Explain the structure and function of {topic} for a first-year nursing student.",
        "Where in the body do we find {topic}, and what is the job of this part?",
    ),
    "damage": (
        "What happens when {topic} do not work properly?",
        "Which diseases commonly affect {topic}?",
        "How can a doctor examine or image {topic}?",
    ),
    "teach": (
        "Write a labeled outline of {topic} that I can use as revision notes.",
        "Quiz me on {topic}: {n} questions, answers at the end.",
        "Explain {topic} with an everyday comparison.",
    ),
}

# test | unit | reference range | values drawn: low | high
LABS = lines("""
hemoglobin | g/dL | 12 to 16 | 7.4 11.2 | 17.1 19.5
white blood cell count | thousand per µL | 4 to 11 | 1.2 3.4 | 12.5 24.0
platelet count | thousand per µL | 150 to 400 | 38 130 | 450 810
mean corpuscular volume | fL | 80 to 100 | 62 76 | 104 118
ferritin | ng/mL | 15 to 150 | 3 11 | 320 900
vitamin B12 | pg/mL | 200 to 900 | 90 170 | 1100 1900
folate | ng/mL | 4 to 20 | 1.4 3.1 | 24 40
sodium | mmol/L | 135 to 145 | 122 131 | 149 158
potassium | mmol/L | 3.5 to 5.0 | 2.6 3.2 | 5.6 6.4
calcium | mg/dL | 8.5 to 10.5 | 6.9 8.0 | 11.2 13.4
magnesium | mg/dL | 1.7 to 2.3 | 0.9 1.4 | 2.8 3.6
creatinine | mg/dL | 0.6 to 1.2 | 0.3 0.5 | 1.6 4.2
blood urea nitrogen | mg/dL | 7 to 20 | 3 5 | 28 66
estimated GFR | mL/min | above 90 | 24 58 | 100 118
fasting glucose | mg/dL | 70 to 99 | 46 62 | 118 210
HbA1c | % | below 5.7 | 4.1 4.4 | 6.6 10.8
total cholesterol | mg/dL | below 200 | 95 115 | 226 310
LDL cholesterol | mg/dL | below 130 | 32 50 | 158 225
HDL cholesterol | mg/dL | above 40 | 22 34 | 82 98
triglycerides | mg/dL | below 150 | 30 42 | 230 560
ALT | U/L | 7 to 40 | 3 5 | 74 380
AST | U/L | 8 to 40 | 4 6 | 66 320
alkaline phosphatase | U/L | 40 to 130 | 18 32 | 190 420
bilirubin | mg/dL | 0.2 to 1.2 | 0.1 0.1 | 2.1 6.8
albumin | g/dL | 3.5 to 5.0 | 2.1 3.1 | 5.3 5.8
lipase | U/L | 10 to 60 | 3 7 | 240 1300
TSH | mU/L | 0.4 to 4.0 | 0.01 0.20 | 6.8 22.0
free T4 | ng/dL | 0.8 to 1.8 | 0.3 0.6 | 2.4 4.1
cortisol in the morning | µg/dL | 6 to 20 | 1.3 3.5 | 28 44
C-reactive protein | mg/L | below 5 | 0.2 0.4 | 24 180
erythrocyte sedimentation rate | mm/h | below 20 | 1 2 | 44 95
D-dimer | ng/mL | below 500 | 90 140 | 820 2600
troponin | ng/L | below 14 | 2 3 | 48 600
BNP | pg/mL | below 100 | 8 15 | 340 1500
INR without anticoagulants | units | 0.9 to 1.1 | 0.7 0.8 | 1.5 2.8
uric acid | mg/dL | 3.5 to 7.2 | 1.6 2.6 | 8.1 11.0
vitamin D | ng/mL | 20 to 50 | 6 14 | 88 120
prostate-specific antigen | ng/mL | below 4 | 0.2 0.4 | 5.2 14.0
oxygen saturation | % | 95 to 100 | 82 91 | 99 100
arterial pH | units | 7.35 to 7.45 | 7.12 7.29 | 7.48 7.58
bicarbonate | mmol/L | 22 to 28 | 11 18 | 31 38
lactate | mmol/L | 0.5 to 2.0 | 0.2 0.3 | 3.4 8.5
""")
LAB_KINDS = {
    "meaning": (
        "What does a measurement of {test} tell a doctor?",
        "A patient sees this line in a lab report: {test}, reference {range} {unit}. Explain what is measured and why.",
        "Why would a doctor measure {test}, and how should one prepare for it?",
    ),
    "low": (
        "What can cause a low {test}?",
        "My {test} is {low} {unit} (reference: {range}). What might that mean?",
        "A {years}-year-old {person} has this result: {test} {low} {unit}, reference {range}. List {n} possible causes and sensible next steps.",
        "Interpret for a nursing student: {test} of {low} {unit}, reference range {range}.",
    ),
    "high": (
        "What can cause a high {test}?",
        "My {relative}'s report says {test} {high} {unit}, and the range is {range}. Is that dangerous?",
        "A {years}-year-old {person} with {complaint} has this result: {test} {high} {unit} (reference {range}). What should be considered?",
        "Which symptoms could go along with this result: {test} {high} {unit}, reference {range}?",
    ),
}

# complaint as people say it, after "I have had"
SYMPTOMS = lines("""
a dry cough
a cough with yellow phlegm
a sore throat
a runny nose and sneezing
a fever of 38.5 degrees
night sweats
swollen glands in my neck
chest pain when I climb stairs
a racing heartbeat
skipped heartbeats
swollen ankles
cold hands and feet
shortness of breath at night
wheezing after exercise
dizziness when I stand up
a spinning feeling when I turn over in bed
headaches every afternoon
a throbbing headache on one side
blurred vision
a red, itchy eye
floaters in my vision
ringing in my ears
ear pain after swimming
a blocked ear
nosebleeds
bleeding gums
mouth ulcers
a dry mouth
trouble swallowing
heartburn after meals
bloating
cramps in my belly
pain in the upper right belly after fatty food
diarrhea
constipation
blood on the toilet paper
nausea in the morning
loss of appetite
weight loss without trying
weight gain without eating more
constant thirst
frequent urination
burning when I pass urine
dark urine
pain in my lower back
back pain that runs down my leg
a stiff neck
shoulder pain when I lift my arm
swollen finger joints in the morning
knee pain after running
heel pain with the first steps of the day
a swollen big toe
leg cramps at night
a swollen and painful calf
tingling in my fingers
numbness in my feet
shaky hands
muscle weakness
trouble falling asleep
waking up at four every morning
tiredness all the time
low mood
sudden attacks of fear
trouble concentrating
forgetfulness
an itchy rash on my arms
a mole that has changed
dry, cracked skin
hair loss
brittle nails
bruises without a reason
a red ring around a tick bite
a painful blister on my lip
irregular periods
very heavy periods
hot flashes
snoring
""")
SYMPTOM_KINDS = {
    "what is it": (
        "I have had {topic} for {days}. What could it be?",
        "For {days} I have had {topic}. What are the most likely causes and the dangerous ones?",
        "{topic_cap} for {days}: what could be behind it?",
        "I am {years} and have had {topic} for {days}. Should I be worried?",
    ),
    "what to do": (
        "I have had {topic} for {days}. When should I see a doctor, and what can I do until then?",
        "I have had {topic} for {days}. Which home remedies are reasonable, and which signs mean that I should go to the emergency room?",
        "I have an appointment because I have had {topic} for {days}. How do I describe it well, and what will the doctor want to know?",
        "A friend of mine says: I have had {topic} for {days}. Draft a kind reply that includes warning signs.",
    ),
    "triage": (
        'A caller to a nurse hotline says: "I have had {topic} for {days}." Which questions should the nurse ask first?',
        'Make a table for a patient who reports: "I have had {topic}." Columns: possible cause, typical clue, usual next step.',
    ),
}

PAIRS = lines("""
a cold | the flu
the flu | COVID-19
a heart attack | cardiac arrest
a heart attack | heartburn
stroke | a transient ischemic attack
type 1 diabetes | type 2 diabetes
osteoarthritis | rheumatoid arthritis
asthma | COPD
Crohn's disease | ulcerative colitis
irritable bowel syndrome | inflammatory bowel disease
a food allergy | a food intolerance
viral infections | bacterial infections
a sprain | a strain
dementia | delirium
sadness | depression
a panic attack | a heart attack
migraine | tension headache
systolic pressure | diastolic pressure
an X-ray | a CT scan
a CT scan | an MRI scan
acetaminophen | ibuprofen
brand-name drugs | generic drugs
eczema | psoriasis
heat exhaustion | heat stroke
hypoglycemia | hyperglycemia
hypothyroidism | hyperthyroidism
arteries | veins
benign tumors | malignant tumors
a side effect | an allergy
incidence | prevalence
sensitivity | specificity
acute pain | chronic pain
conjunctivitis | a stye
hemorrhoids | anal fissures
a fracture | a dislocation
vaccination | natural infection
a psychologist | a psychiatrist
a nurse practitioner | a physician
palliative care | hospice care
LDL cholesterol | HDL cholesterol
""")
PAIR_ASKS = (
    "What is the difference between {first} and {second}?",
    "How can I tell {first} from {second}?",
    "Compare {first} and {second} in a small table for patients.",
    "Explain {first} versus {second} to someone without medical training.",
    "{first_cap} or {second}: which features point to the one and which to the other?",
)

HABITS = lines("""
How much water should an adult drink a day?
How much sleep do teenagers need?
How much salt is too much?
How often should I have my blood pressure checked?
How do I measure my blood pressure correctly at home?
How do I read the nutrition label on food?
How long should I wash my hands, and when does it matter most?
How does a fever help the body, and when should it be treated?
How do I take a child's temperature correctly?
How do I treat a minor burn?
How do I stop a nosebleed?
How do I clean and dress a scraped knee?
How do I remove a tick?
How do I put someone in the recovery position?
How is CPR done on an adult? Outline the steps.
How do I help someone who is choking?
How do I recognize a stroke quickly?
How do I use an inhaler with a spacer?
How do I store medicines safely with small children at home?
How do I get rid of old medicines?
How do I prepare for a colonoscopy?
How do I prepare for my first mammogram?
How do I talk to my doctor about something embarrassing?
How do I keep track of several medicines a day?
How do I protect my back at a desk job?
How do I protect my skin from the sun?
How do I lower my cholesterol without pills?
How do I start to exercise after years on the sofa?
How do I quit smoking?
How do I cut down on alcohol?
How do I sleep better when I work night shifts?
How do I avoid getting sick when I travel?
How do I know whether a health website can be trusted?
What should be in a home first-aid kit?
What should I eat during a stomach bug?
What vaccines do adults need?
What vaccines do babies get in the first year, and why so many?
What happens during a routine checkup?
What happens during general anesthesia?
What happens in an MRI scanner, and does it hurt?
What is a normal resting heart rate?
What is body mass index and what are its limits?
What is a placebo, and why do studies use one?
What is informed consent?
What is antibiotic resistance, and what can I do about it?
What is herd immunity?
What is the difference between a screening test and a diagnostic test?
What is a balanced diet for a vegetarian?
What is the glycemic index?
What does "once daily with food" mean for a medicine, and why does it matter?
What should pregnant women avoid eating?
What helps against motion sickness?
What helps against jet lag?
What helps against hiccups?
Why do antibiotics have to be taken as long as prescribed?
Why do I need a flu shot every year?
Why is stretching recommended after sitting for hours?
Why do older people fall more often, and how can falls be prevented?
Why do we get a headache from dehydration?
Why are some people allergic to peanuts?
Why does my doctor want me fasting before a blood test?
Why is too much sitting bad for health?
Is it safe to exercise with a cold?
Is it normal for blood pressure to change during the day?
Is coffee good or bad for the heart?
Can stress cause stomach pain?
Can I drive after taking an allergy pill?
Can you be allergic to cold?
Do vitamin C tablets prevent colds?
Do I need a vitamin D supplement in winter?
Should I ice or heat a strained muscle?
Should children with a fever stay in bed?
""")

TERMS = lines("""
hypertension
tachycardia
bradycardia
dyspnea
edema
myocardial infarction
cerebrovascular accident
ischemia
stenosis
thrombus
embolus
arrhythmia
syncope
palpitations
hematuria
dysuria
polyuria
nocturia
proteinuria
hemoptysis
hematemesis
melena
dysphagia
dyspepsia
jaundice
ascites
hepatomegaly
splenomegaly
lymphadenopathy
leukocytosis
thrombocytopenia
anemia
hypoxia
cyanosis
sepsis
pyrexia
erythema
pruritus
urticaria
necrosis
abscess
biopsy
metastasis
remission
benign
prognosis
etiology
idiopathic
iatrogenic
nosocomial
comorbidity
contraindication
prophylaxis
analgesic
antipyretic
subcutaneous
intravenous
sublingual
enteral feeding
catheter
stent
ablation
auscultation
palpation
percussion
laparoscopy
endoscopy
angiography
echocardiogram
electroencephalogram
lumbar puncture
arthroscopy
dialysis
debridement
anastomosis
ataxia
aphasia
paresthesia
hemiparesis
neuropathy
spasticity
vertigo
diplopia
photophobia
myalgia
arthralgia
osteopenia
kyphosis
contusion
laceration
triage
titration of a dose
off-label use
half-life of a drug
bioavailability
double-blind trial
""")
TERM_ASKS = (
    'What does "{topic}" mean?',
    'My report mentions "{topic}". Can you put that in plain words?',
    'Define "{topic}" and use it in a sentence a doctor might say. Then say the same to a patient.',
    'Explain the medical term "{topic}" and where the word comes from.',
    "{topic} - meaning? one sentence please",
)

# condition | who, lowest and highest age | complaint | findings, separated by semicolons
VIGNETTES = lines("""
acute appendicitis | man 16 35 | pain that began around the navel and moved to the lower right belly | temperature of 38.1 °C; tenderness with rebound in the right lower quadrant; a raised white blood cell count
acute cholecystitis | woman 38 60 | steady pain in the upper right belly after a fatty dinner | fever; pain that stops a deep breath when the right upper belly is pressed; gallstones on ultrasound
acute pancreatitis | man 35 60 | severe upper belly pain that goes through to the back | vomiting; heavy drinking in the last week; lipase more than three times the upper limit
a heart attack | man 48 75 | crushing chest pain for an hour that spreads to the left arm | sweating; ST elevation in leads II, III and aVF; a history of smoking
stable angina | man 52 74 | chest tightness when walking uphill that goes away within minutes of rest | normal troponin; a normal ECG at rest; high cholesterol
pulmonary embolism | woman 28 60 | sudden shortness of breath and sharp chest pain on breathing in | a long flight four days ago; heart rate of 118; a swollen left calf
heart failure | woman 66 84 | breathlessness when lying flat and swelling of both legs | crackles at both lung bases; raised neck veins; weight gain of four kilograms in two weeks
atrial fibrillation | woman 65 82 | palpitations and tiredness for two days | an irregularly irregular pulse of 128; no P waves on the ECG; otherwise stable vital signs
an ischemic stroke | man 60 80 | sudden weakness of the right arm and slurred speech | drooping of the right side of the mouth; symptoms that began 70 minutes ago; no bleeding on the CT scan
bacterial meningitis | man 18 24 | fever, severe headache and a stiff neck since this morning | sensitivity to light; a rash of small purple spots; drowsiness
subarachnoid hemorrhage | woman 40 62 | the worst headache of her life, which began within seconds | vomiting; neck stiffness; no fever
migraine | woman 20 40 | throbbing one-sided headaches twice a month | flickering zigzag lines before the pain; nausea; relief in a dark room
community-acquired pneumonia | man 55 78 | fever, chills and a cough with rusty phlegm | crackles over the right lower lung; respiratory rate of 26; a shadow on the chest X-ray
an asthma attack | woman 17 35 | wheezing and chest tightness that wake her at night | a family history of allergies; prolonged breathing out; improvement after an inhaler
COPD | man 58 75 | breathlessness on stairs that has grown over years | 45 years of smoking; a barrel-shaped chest; FEV1/FVC of 0.58 that does not improve with an inhaler
pneumothorax | man 18 28 | sudden sharp pain on the left side of the chest and shortness of breath | tall and thin build; no breath sounds on the left; a hollow sound on percussion
type 1 diabetes with ketoacidosis | girl 9 15 | thirst, weight loss and vomiting for a week | fruity breath; deep, fast breathing; glucose of 486 mg/dL with ketones in the urine
hypoglycemia | man 55 78 | confusion and sweating before lunch | treatment with glipizide; a skipped breakfast; glucose of 48 mg/dL
hypothyroidism | woman 35 60 | tiredness, weight gain and constipation for months | dry skin; slow reflexes; TSH of 18 mU/L
Graves' disease | woman 25 45 | weight loss despite a good appetite, and trembling hands | bulging eyes; a pulse of 112; low TSH
Addison's disease | woman 28 48 | dizziness, salt craving and weight loss | darkening of the palms; blood pressure of 92/58; low sodium and high potassium
iron-deficiency anemia | woman 22 45 | tiredness and hair loss | heavy periods; spoon-shaped nails; ferritin of 5 ng/mL
vitamin B12 deficiency | woman 50 72 | tingling feet and an unsteady walk | a strict vegan diet for ten years; large red blood cells; a smooth, sore tongue
giant cell arteritis | woman 68 82 | a new headache at the temple and pain in the jaw when chewing | tenderness of the scalp; brief loss of vision in one eye; sedimentation rate of 92
gout | man 42 66 | a red, swollen big toe that woke him at night | a feast of seafood and beer the day before; raised uric acid; needle-shaped crystals in the joint fluid
rheumatoid arthritis | woman 32 55 | swollen hands that are stiff for two hours every morning | both wrists affected; positive anti-CCP antibodies; symptoms for four months
septic arthritis | man 45 70 | a hot, swollen knee that he cannot bend | fever; cloudy joint fluid with many white cells; a recent skin infection
a hip fracture | woman 74 90 | pain in the groin after a fall at home | a shortened leg that is turned outward; inability to stand; known osteoporosis
kidney stones | man 28 52 | waves of severe flank pain that spread to the groin | restlessness; blood in the urine; a similar episode three years ago
pyelonephritis | woman 20 40 | fever, chills and flank pain | burning urination for three days; tenderness over the kidney; white cells in the urine
nephrotic syndrome | boy 3 8 | puffy eyes in the morning and swollen legs | foamy urine; low albumin; protein +++ on the dipstick
urinary retention from an enlarged prostate | man 66 84 | no urine for ten hours and growing lower belly pain | a weak stream for years; a cold remedy taken yesterday; a bladder that can be felt above the pubic bone
testicular torsion | boy 12 17 | sudden severe pain in one testicle for two hours | nausea; a testicle that sits high and sideways; no fever
an ectopic pregnancy | woman 22 38 | lower belly pain on one side and light bleeding | a missed period six weeks ago; a positive pregnancy test; an empty uterus on ultrasound
preeclampsia | woman 24 40 | headache and blurred vision in week 34 of pregnancy | blood pressure of 164/104; protein in the urine; swelling of the face
polycystic ovary syndrome | woman 19 32 | irregular periods and acne | increased facial hair; weight gain; many small follicles on ultrasound
pelvic inflammatory disease | woman 18 30 | lower belly pain and fever | a new partner; pain when the cervix is moved; abnormal discharge
croup | boy 1 3 | a barking cough at night | a harsh noise when breathing in; a mild cold for two days; no drooling
bronchiolitis | girl 0 1 | a runny nose, then fast breathing and poor feeding | wheezing; a winter month; a sibling with a cold
intussusception | boy 0 2 | attacks of crying with legs drawn up | vomiting; jelly-like red stool; a sausage-shaped mass in the belly
Kawasaki disease | boy 1 4 | fever for six days | red eyes without pus; cracked lips and a red tongue; a rash and swollen hands
measles | girl 2 8 | fever, cough and red eyes, then a rash that began on the face | white spots inside the cheeks; no vaccinations; a visit abroad two weeks ago
whooping cough | boy 6 12 | fits of coughing for three weeks that end in vomiting | a whoop when breathing in; incomplete vaccinations; no fever
infectious mononucleosis | girl 15 19 | sore throat, fever and great tiredness | swollen glands at the back of the neck; an enlarged spleen; a rash after amoxicillin
shingles | man 60 80 | burning pain on one side of the chest, then blisters in a band | no crossing of the midline; chickenpox in childhood; treatment with prednisone
Lyme disease | woman 25 60 | a red ring on the thigh that grows day by day | a hike in the woods two weeks ago; mild fever; no itching
cellulitis | man 50 75 | a red, warm and swollen lower leg | a crack between the toes; fever; a border that grows by the hour
anaphylaxis | woman 18 40 | hives, wheezing and a swollen tongue ten minutes after eating nuts | blood pressure of 82/48; a hoarse voice; an earlier mild reaction to nuts
malaria | man 24 50 | fever with shaking chills every second day | return from a trip to West Africa two weeks ago; no tablets for prevention; an enlarged spleen
celiac disease | woman 24 45 | bloating, loose stools and weight loss | iron deficiency; an itchy rash on the elbows; relief on a gluten-free diet
ulcerative colitis | man 22 38 | bloody diarrhea and cramps for six weeks | urgency; continuous inflammation from the rectum on; recent weight loss
acid reflux | man 30 55 | burning behind the breastbone after meals and when lying down | a sour taste; no weight loss; relief with antacids
a bleeding peptic ulcer | man 50 72 | black, tarry stools and dizziness | daily ibuprofen for back pain; heart rate of 112; hemoglobin of 8.4 g/dL
cirrhosis | man 48 68 | a swollen belly and yellow eyes | spider-like vessels on the chest; low albumin; long-term alcohol use
colorectal cancer | man 56 74 | a change of bowel habit and blood in the stool for three months | weight loss; iron-deficiency anemia; a father with bowel cancer
Parkinson's disease | man 60 76 | a tremor of the right hand at rest and small handwriting | slow movements; stiffness with a cogwheel feel; a shuffling walk
multiple sclerosis | woman 22 40 | blurred vision with pain on moving the left eye | numb legs for a week last year; brisk reflexes; white matter lesions on MRI
Guillain-Barré syndrome | man 25 60 | weakness that began in the feet and climbs upward | diarrhea two weeks ago; absent reflexes; no loss of sensation in the trunk
myasthenia gravis | woman 24 40 | drooping eyelids and double vision that get worse in the evening | tiring of the jaw while chewing; normal reflexes; improvement after rest
delirium | man 76 90 | confusion that began two days after hip surgery and comes and goes | poor attention; a new urinary infection; sleeping by day and restless at night
Alzheimer's disease | woman 70 84 | forgetfulness that has grown for two years | repeated questions; getting lost on familiar ways; normal thyroid and vitamin B12 values
major depression | woman 25 55 | low mood and no joy in anything for two months | early waking; loss of appetite; feelings of guilt
panic disorder | man 22 38 | sudden attacks of fear with a racing heart and tingling hands | normal ECG and thyroid values; fear of the next attack; attacks that last ten minutes
acute glaucoma | woman 60 76 | a painful red eye, halos around lights and vomiting | a hazy cornea; a fixed, half-dilated pupil; a hard eyeball
carbon monoxide poisoning | woman 30 60 | headache and nausea that her husband has as well | an old gas heater; symptoms that improve outdoors; a normal reading on the finger clip
heat stroke | man 20 45 | collapse during a summer marathon | temperature of 41.2 °C; hot skin; confusion
""")
VIGNETTE_KINDS = {
    "diagnosis": (
        "{case}\n\nWhat is the most likely diagnosis, and why?",
        "{case} What is going on here? Name the most likely diagnosis and two alternatives.",
        "Case for students:\n{case}\n\nList the findings that point to the diagnosis.",
        "{case}\n\nWhich of the following is the most likely diagnosis?\n{options}",
    ),
    "next step": (
        "{case}\n\nWhat should be done first?",
        "{case} Which further tests would you order, and what do you expect to find?",
        "{case}\n\nOutline the general management in {n} steps. No exact doses are needed.",
        "{case}\n\nIs this an emergency? Explain your reasoning for a triage nurse.",
    ),
    "explain": (
        "{case}\n\nThe diagnosis is {condition}. Explain to the patient or the family in plain words what is happening.",
        "{case} The team suspects {condition}. Which findings support this, and which question is still open?",
        "Explain how {condition} accounts for each finding in this case.\n\n{case}",
        "Turn this into a short case report with the headings Presentation, Findings and Discussion. The diagnosis is {condition}.\n\n{case}",
    ),
}
OPENINGS = (
    "A {years}-year-old {person} comes to the {place} with {complaint}.",
    "A {years}-year-old {person} presents with {complaint}.",
    "You see a {years}-year-old {person} in the {place}. The complaint is {complaint}.",
    "{complaint_cap}: this brings a {years}-year-old {person} to the {place}.",
)
FINDINGS = (
    "There is also the following: {listed}.",
    "History and examination reveal {listed}.",
    "Notable are {listed}.",
    "Further facts:\n{bullets}",
)

# reason for admission | what was done | medicines at discharge | advice and follow-up, each separated by semicolons
NOTES = lines("""
NSTEMI | PCI with DES to the LAD; echo with EF 50 %; telemetry without arrhythmia | ASA 81 mg qd; ticagrelor 90 mg bid; atorvastatin 80 mg qhs; metoprolol 25 mg bid | cardiac rehab referral; f/u cardiology in 2 wk; no heavy lifting x 1 wk
CHF exacerbation | IV diuresis, net -4.2 L; CXR with improving pulmonary edema; K repleted | furosemide 40 mg PO bid; lisinopril 10 mg qd; KCl 20 mEq qd | daily weights, call if +3 lb in 2 d; 2 g Na diet; BMP in 1 wk
COPD exacerbation | nebs q4h, then prn; prednisone taper; weaned to RA | tiotropium inh qd; albuterol MDI prn SOB; prednisone 40 mg x 3 d | smoking cessation; f/u PCP in 1 wk; pulm rehab
CAP of the RLL | IV abx, changed to PO on d 3; blood cx neg; SpO2 96 % on RA | amoxicillin-clavulanate 875 mg bid x 5 d; acetaminophen prn | repeat CXR in 6 wk; finish abx; return if fever > 38.5
acute appendicitis | laparoscopic appendectomy, uncomplicated; tolerating regular diet | ibuprofen 400 mg q6h prn pain; docusate 100 mg bid | no lifting > 10 lb x 2 wk; keep wound dry x 48 h; surgery clinic in 2 wk
new-onset T2DM | glucose 412 on arrival, no DKA; insulin drip, then basal-bolus; HbA1c 11.2 % | metformin 500 mg bid; insulin glargine 14 U qhs | FSBG qid with log; diabetes education; endo f/u in 10 d
L hip fx after a fall | ORIF on hospital day 1; PT/OT, WBAT with walker; Hgb stable | enoxaparin 40 mg SC qd x 28 d; acetaminophen 1 g tid; vit D 1000 IU qd | ortho f/u in 2 wk for staples; fall precautions; DEXA as outpt
TIA | MRI brain neg for infarct; carotid US with 40 % stenosis bilat; no AF on telemetry | clopidogrel 75 mg qd; rosuvastatin 20 mg qhs; amlodipine 5 mg qd | no driving x 2 wk; neuro f/u in 1 mo; call 911 for face droop or weakness
DVT of the R leg | US with popliteal thrombus; no sx of PE; started on DOAC | apixaban 10 mg bid x 7 d, then 5 mg bid | avoid NSAIDs; f/u heme in 4 wk; return if SOB or CP
pyelonephritis | IV ceftriaxone x 2 d; UCx with E. coli, pan-sensitive; afebrile x 24 h | TMP-SMX DS bid x 10 d | push fluids; f/u PCP in 1 wk; return if N/V or rigors
acute pancreatitis, gallstone | NPO, IVF, pain control; diet advanced d 3; lipase trending down | pantoprazole 40 mg qd; acetaminophen prn | low-fat diet; lap chole scheduled in 2 wk; no EtOH
upper GI bleed | 2 U pRBC; EGD with clean-based gastric ulcer; H. pylori bx pending | pantoprazole 40 mg bid x 8 wk; hold NSAIDs; FeSO4 325 mg qod | CBC in 1 wk; f/u GI for bx; return if melena
new AF with RVR | rate control with diltiazem; TTE with nl EF; CHA2DS2-VASc 3 | diltiazem ER 180 mg qd; apixaban 5 mg bid | limit caffeine; cardiology in 3 wk; bleeding precautions
asthma exacerbation | continuous nebs in ED; Mg x 1; PEF 80 % at d/c | budesonide-formoterol inh bid; albuterol MDI 2 puffs q4h prn; prednisone 40 mg x 4 d | asthma action plan given; avoid cat exposure; peds or PCP f/u in 3 d
cellulitis of the L leg | IV cefazolin x 3 d; no abscess on US; WBC 16 to 9 | cephalexin 500 mg qid x 7 d | leg elevation; mark the border; wound check in 2 d
SBO, adhesive | NGT decompression x 2 d; bowel function returned; no OR | none new; home meds resumed | low-residue diet x 1 wk; return if distension or emesis; surgery f/u prn
AKI on CKD 3 | held ACEi and NSAIDs; IVF; Cr 3.1 to 1.6 | amlodipine 10 mg qd; ACEi on hold | BMP in 5 d; renal f/u in 2 wk; avoid NSAIDs and contrast
delirium with UTI | ceftriaxone, then PO; sitter x 1 d; A&O x 3 at d/c | nitrofurantoin 100 mg bid x 5 d; melatonin 3 mg qhs | avoid anticholinergics; home health PT; f/u geriatrics in 2 wk
s/p R total knee replacement | POD 2, ambulating 150 ft with FWW; ROM 0 to 85 degrees; pain controlled PO | ASA 81 mg bid x 4 wk; oxycodone 5 mg q4h prn; senna qhs | outpt PT 3x/wk; TED hose; f/u ortho POD 14
uncomplicated SVD | PPD 2, lochia wnl; breastfeeding; Hgb 10.4 | ibuprofen 600 mg q6h prn; FeSO4 325 mg qd; PNV qd | pelvic rest x 6 wk; OB f/u in 6 wk; call if T > 38 or heavy bleeding
concussion | CT head neg; GCS 15 throughout; neuro checks wnl | acetaminophen prn HA | cognitive rest x 48 h; graded return to play; return if vomiting or worsening HA
hyperkalemia | K 6.4 with peaked T waves; Ca gluconate, insulin/D50; K 4.8 at d/c | spironolactone stopped; furosemide 20 mg qd | low-K diet; BMP in 3 d; PCP f/u in 1 wk
diverticulitis, uncomplicated | CT with sigmoid thickening, no abscess; bowel rest; PO abx | amoxicillin-clavulanate 875 mg bid x 7 d | clear liquids, advance as tol; colonoscopy in 6 to 8 wk; return if T > 38.5
anaphylaxis to bee sting | epi IM x 2; obs x 12 h; no biphasic rxn | epi autoinjector 0.3 mg x 2; cetirizine 10 mg qd x 5 d | allergy referral; always carry epi; medical alert bracelet
""")
NOTE_KINDS = {
    "plain": (
        "Rewrite this discharge note in plain language for the patient.\n\n{note}",
        "Translate the note into everyday English that a {person} of {years} without medical training understands.\n\n{note}",
        "{note}\n\nExplain to the family what happened in the hospital.",
    ),
    "medicines": (
        "{note}\n\nMake a table of the medicines for the patient: what each one is for and when to take it.",
        "Write out the abbreviations in this note.\n\n{note}",
        "What should the patient know about the new medicines? Use the note below.\n\n{note}",
    ),
    "follow-up": (
        "{note}\n\nList what the patient has to do after going home, in the order of time.",
        "Write a friendly letter to the patient with the follow-up plan and the warning signs.\n\n{note}",
        "A nurse phones the patient two days after discharge. Which {n} questions should she ask, given this note?\n\n{note}",
    ),
}
NOTE_LAYOUTS = (
    "Adm dx: {dx}\nHospital course: {course}\nD/c meds: {meds}\nPlan: {plan}",
    "{years}yo {sex} admitted for {dx}. Course: {course}. Discharged on {meds}. Plan: {plan}.",
    "DISCHARGE SUMMARY\nPt: {years} y/o {sex}\nDx: {dx}\nCourse:\n{course_list}\nMeds:\n{meds_list}\nF/u:\n{plan_list}",
)

LAY = (
    *("",) * 9,
    "I am a caregiver for my {relative}.",
    "General information only, please.",
    "English is not my first language, so please use simple words.",
    "I know that you cannot replace a doctor, but I want to understand this better.",
    "I am writing an article for a community newsletter.",
    "My {relative} asked me about this.",
)
STUDENT = (
    *("",) * 9,
    "I am studying for my nursing exam.",
    "I am a first-year medical student.",
    "I teach health education at a high school.",
    "I am a pharmacy technician in training.",
    "We discussed this on rounds today.",
)
PLAIN = (
    *("",) * 9,
    "Keep it under {limit} words.",
    "Use bullet points.",
    "Avoid medical jargon.",
    "End with when to see a doctor.",
    "Be brief.",
    "Give the key point first.",
)
EXACT = (
    *("",) * 9,
    "Keep it under {limit} words.",
    "Use bullet points.",
    "Please stick to what is well established.",
    "Give the key point first.",
    "Mention one common pitfall.",
)
STUDIES = ("mechanism", "diagnosis", "exam", "teach")  # kinds that students ask about
DRAWN = {
    "n": (3, 4, 5, 6),
    "age": (6, 7, 9, 12),
    "limit": (80, 100, 120, 150, 200),
    "relative": ("mother", "father", "sister", "brother", "grandmother", "uncle", "husband", "wife", "neighbor"),
    "days": (
        "two days",
        "three days",
        "a week",
        "ten days",
        "two weeks",
        "a month",
        "several months",
        "about five days",
    ),
    "years": (19, 24, 31, 35, 42, 47, 56, 63, 70, 77),
    "person": ("man", "woman"),
    "complaint": ("tiredness", "a fever", "belly pain", "no symptoms", "shortness of breath", "muscle aches"),
}


def tasks() -> Iterator[tuple[str, Writer]]:
    """Every (kind, topic) pair with its writer."""
    for kind, asks in CONDITION_KINDS.items():
        yield from crossed({kind: asks}, CONDITIONS, *frames(kind), **DRAWN)
    for drugs, example, use in rows(DRUGS):
        for kind, asks in DRUG_KINDS.items():
            writer = framed(asks, *frames(kind), drugs=drugs, example=example, use=use, **DRAWN)
            yield f"drug, {kind}: {drugs}", writer
    for kind, table, asks in (("interaction", INTERACTIONS, INTERACTION_ASKS), ("difference", PAIRS, PAIR_ASKS)):
        for first, second in rows(table):
            slots = {"first": first, "second": second, "first_cap": capital(first)}
            yield f"{kind}: {first} and {second}", framed(asks, LAY, PLAIN, **slots, **DRAWN)
    for topic in ANATOMY:
        for kind, asks in ANATOMY_KINDS.items():
            plural = topic.endswith("s") and not topic.endswith(("us", "is", "ss", "joints", "disks"))
            fitting = asks if plural else [ask.replace(" do not work", " does not work") for ask in asks]
            yield f"anatomy, {kind}: {topic}", framed(fitting, *frames(kind), topic=topic, **DRAWN)
    for test, unit, span, low, high in rows(LABS):
        slots = {"test": test, "unit": unit, "range": span, "low": drawn_between(low), "high": drawn_between(high)}
        for kind, asks in LAB_KINDS.items():
            yield f"lab, {kind}: {test}", framed(asks, LAY, PLAIN, **slots, **DRAWN)
    for topic in SYMPTOMS:
        for kind, asks in SYMPTOM_KINDS.items():
            slots = {"topic": topic, "topic_cap": capital(topic)}
            yield f"symptom, {kind}: {topic}", framed(asks, ("",), PLAIN, **slots, **DRAWN)
    yield from crossed({"habit": ("{topic}",)}, HABITS, LAY, PLAIN, **DRAWN)
    yield from crossed({"term": TERM_ASKS}, TERMS, ("",), PLAIN, **DRAWN)
    for line in rows(VIGNETTES):
        for kind, asks in VIGNETTE_KINDS.items():
            yield f"case, {kind}: {line[0]}", partial(write_case, asks, line)
    for line in rows(NOTES):
        for kind, asks in NOTE_KINDS.items():
            yield f"note, {kind}: {line[0]}", partial(write_note, asks, line)


def frames(kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What those who ask such a thing say about themselves, and what they wish."""
    return (STUDENT, EXACT) if kind in STUDIES else (LAY, PLAIN)


def drawn_between(ends: str) -> list[str]:
    """Eight values between two ends, written with as many digits."""
    low, high = ends.split()
    digits = len(low.partition(".")[2])
    steps = (float(low) + (float(high) - float(low)) * place / 7 for place in range(8))
    return [f"{step:.{digits}f}" for step in steps]


def write_case(asks: tuple[str, ...], line: list[str], rng: random.Random) -> str:
    """A case with its facts in one of several orders, and a question about it."""
    condition, who, complaint, findings = line
    person, low, high = who.split()
    found = findings.split("; ")
    rng.shuffle(found)
    found = found[: rng.choice((2, 3, 3))]
    years = rng.randint(int(low), int(high))
    if person in ("boy", "girl") and years < 2:
        aged = {0: "8-month-old", 1: "15-month-old"}[years]
    else:
        aged = f"{years}-year-old"
    comma = ";" if any(mark in finding for finding in found for mark in (" and ", ", ")) else ","
    listed = f"{comma} ".join(found[:-1]) + (f"; and {found[-1]}" if comma == ";" else f" and {found[-1]}")
    opening = (
        rng.choice(OPENINGS)
        .replace("{years}-year-old", "{aged}")
        .replace("A {aged}", "{an_aged}")
        .replace("a {aged}", "{low_aged}")
    )
    others = [row[0] for row in rows(VIGNETTES) if row[0] != condition]
    options = [condition, *rng.sample(others, 3)]
    rng.shuffle(options)
    values = {
        "aged": aged,
        "an_aged": capital(an(aged)),
        "low_aged": an(aged),
        "person": person,
        "complaint": complaint,
        "complaint_cap": capital(complaint),
        "place": rng.choice(("emergency department", "clinic", "family doctor's office")),
        "listed": listed,
        "bullets": "\n".join(f"- {finding}" for finding in found),
    }
    case = f"{opening} {rng.choice(FINDINGS)}".format_map(values)
    listed_options = "\n".join(f"{letter}) {capital(option)}" for letter, option in zip("ABCD", options, strict=True))
    return fill(rng, rng.choice(asks), case=case, condition=condition, options=listed_options, n=(3, 4, 5))


def write_note(asks: tuple[str, ...], line: list[str], rng: random.Random) -> str:
    """A discharge note in the shorthand of hospitals, and what to make of it."""
    dx, *parts = line
    course, meds, plan = (part.split("; ") for part in parts)
    years = rng.randint(24, 45) if "SVD" in dx else rng.randint(52, 88)
    sex = "F" if "SVD" in dx else rng.choice("MF")
    values = {"dx": dx, "years": years, "sex": sex, "person": "woman" if sex == "F" else "man", "n": (4, 5, 6)}
    for name, items in (("course", course), ("meds", meds), ("plan", plan)):
        values[name] = "; ".join(items)
        values[f"{name}_list"] = "\n".join(f"- {item}" for item in items)
    note = rng.choice(NOTE_LAYOUTS).format_map(values)
    return fill(rng, rng.choice(asks), note=note, **{key: values[key] for key in ("years", "person", "n")})
